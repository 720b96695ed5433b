// Carries one simulation from event to event. Private to the simulator. The jobs' facts are tables
// (simulated_jobs.h), the steps under way a window (progress.h), the links and the ranks' times accounts of
// their own (links.h, rank_account.h). The ranks' sent bytes are added up ahead if that is exact
// (transfer_totals.h). One thread; once.
#ifndef WEFT_SCHEDULES_SIMULATOR_SIMULATION_H_
#define WEFT_SCHEDULES_SIMULATOR_SIMULATION_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/dispatch/admission.h"
#include "schedules/dispatch/dispatch.h"
#include "schedules/dispatch/gradient_turns.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"
#include "schedules/simulator/event_queue.h"
#include "schedules/simulator/links.h"
#include "schedules/simulator/rank_account.h"
#include "schedules/simulator/rank_set.h"
#include "schedules/simulator/simulate.h"
#include "schedules/simulator/simulated_jobs.h"
#include "schedules/sync/held_versions.h"

namespace weft {

// Admission of forwards, beyond the schedule's limits.
struct SimulatedAdmission {
  std::vector<double> held_bytes;          // by rank, beside activations
  std::optional<ActivationMemory> memory;  // absent: the run's own, if it has one
  // [step mod period]: the order, by job index, in which forwards of limited stages are admitted; empty where
  // they are admitted as they come.
  std::vector<std::vector<int32_t>> order;
};

class Simulation {
 public:
  // Refers to graph and options. If a state migrates, the graph has as many steps as the options.
  // `tables` are the graph's; null to make them.
  Simulation(const Graph& graph, const SimulationOptions& options, SimulatedAdmission admission,
             std::shared_ptr<const StepTables> tables = nullptr);

  absl::StatusOr<SimulationResult> Run();

 private:
  using Facts = SimulatedJobs::Facts;
  using Output = SimulatedJobs::Output;
  // The fields that every event looks at come first.
  struct RankState {
    int32_t running = 0;  // jobs
    int32_t instant = 0;  // ready jobs of no duration
    bool forward_running = false;
    int step = 0;  // all of its jobs before have ended
    ReadyJobs ready;
  };

  StepProgress::Options ProgressOptions() const;
  void Prepare();
  void OpenSteps(int step);
  const Facts& FactsOf(JobId id) const { return jobs_.At(StepOf(id)).jobs[IndexOf(id)]; }
  Job JobOf(JobId id) const { return progress_.jobs().JobOf(id); }
  void Seed();
  void TakeEvent();
  // Counts an input of a job, whose step may not be open; true if it was the last.
  bool CountInput(JobId id) {
    if (StepOf(id) >= progress_.end_step()) OpenSteps(StepOf(id));
    return progress_.Arrive(id);
  }
  void Arrive(JobId id, double sent);
  // Counts an input that has come, and makes the job ready if it was the last.
  void Count(JobId id) {
    if (CountInput(id)) MakeReady(id, FactsOf(id));
  }
  void MakeReady(JobId id, const Facts& facts);
  // Notes that there may be something to dispatch on a rank. One that is busy is noted when its job ends; but
  // a forward may have the second half of its pair beside it.
  void Touch(Rank rank) { Touch(rank, ranks_[rank]); }
  void Touch(Rank rank, const RankState& state) {
    if (state.running > 0 && !has_pairs_) return;
    touched_.Add(rank);
    if (state.instant > 0) TouchInstant(rank);
  }
  void TouchInstant(Rank rank);
  void BeginJoint(JobId id);
  void RecordJob(JobId id, double end);
  void Start(JobId id, const Facts& facts, double duration);
  void StartBeside(Rank rank);
  void StartTaken(JobId id);
  void StartPair(JobId id, const Facts& facts);
  void End(JobId id);
  void NoteEnd(int step, const Facts& facts);
  void CountVersions(JobId id, const Facts& facts);
  void Release(JobId id, const Facts& facts);
  void LeaveEndedSteps();
  void HandOn(Rank source, int step, const Output& output) {
    if (step >= options_.steps) return;
    const JobId to = MakeJobId(step, output.index);
    if (output.sent && !hands_over_) return Send(source, to, output);
    Count(to);
  }
  void Send(Rank source, JobId to, const Output& output);
  void Carry(Rank source, JobId to, Rank target, TensorKind tensor, double bytes);
  void DispatchInstantJobs(Rank rank);
  void DispatchAll();
  IdleCause CauseOf(Rank rank);
  absl::Status Stuck() const;

  const Graph& graph_;
  const SimulationOptions& options_;
  const Schedule& schedule_;
  const JobCosts costs_;
  StepProgress progress_;
  SimulatedJobs jobs_;
  AdmissionOrder tickets_;
  const bool has_tickets_;
  GradientTurns turns_;                                        // of gradients for which tickets have room
  const std::vector<std::vector<int32_t>> admitted_in_order_;  // SimulatedAdmission::order
  const bool has_pairs_;
  const bool overlaps_steps_;                 // some jobs read old weights
  const bool counts_versions_;                // else every member has one version at a time
  const bool transfers_are_counted_;          // ahead, but for initial weights
  const bool hands_over_;                     // at once: what is sent takes no time, and leaves no trace
  const SimulatedJobs::Reach there_at_once_;  // the farthest of outputs that only have to be counted
  HeldVersions versions_;
  SimulationResult result_;
  RankTimes times_;
  AliveActivations alive_;
  Links links_;
  std::vector<RankState> ranks_;
  EventQueue events_;
  // Members that have come to a collective which others have not come to, by step and stage.
  std::map<std::pair<int, int>, std::vector<JobId>> joining_;
  RankSet touched_;                   // ranks that may have something to dispatch
  RankSet dispatched_;                // those of them that are not dispatched yet in this instant
  std::vector<Rank> instant_;         // ranks that may have a job of no duration to dispatch
  std::vector<double> last_forward_;  // by rank, where steps overlap: the start of its last forward so far
  int64_t ended_ = 0;
  double now_ = 0;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_SIMULATION_H_
