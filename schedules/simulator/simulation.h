// Carries one simulation from event to event. Private to the simulator. The jobs' facts are tables
// (simulated_jobs.h), the steps under way a window (progress.h), the links and the ranks' times accounts of
// their own (links.h, rank_account.h). One thread; once.
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
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"
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
  std::optional<ActivationMemory> memory;  // absent: the schedule's own, if it has one
  // [step mod period]: the order, by job index, in which forwards of limited stages are admitted; empty where
  // they are admitted as they come.
  std::vector<std::vector<int32_t>> order;
};

class Simulation {
 public:
  // Refers to graph and options. Where a state migrates, the graph is of as many steps as the options have.
  // `tables` are the graph's; null to make them.
  Simulation(const Graph& graph, const SimulationOptions& options, SimulatedAdmission admission,
             std::shared_ptr<const StepTables> tables = nullptr);

  absl::StatusOr<SimulationResult> Run();

 private:
  using Facts = SimulatedJobs::Facts;
  static constexpr double kEnds = -1;

  struct Event {
    double time;
    JobId job;
    double sent;  // of an input that arrives; kEnds for the end of the job
    bool arrival() const { return sent != kEnds; }
    bool operator<(const Event& o) const { return time > o.time; }
  };
  struct RankState {
    ReadyJobs ready;
    int running = 0;
    bool forward_running = false;
    int step = 0;  // all of its jobs before have ended
  };

  StepProgress::Options ProgressOptions() const;
  void Prepare();
  void OpenSteps(int step);
  const Facts& FactsOf(JobId id) const { return jobs_.At(StepOf(id)).jobs[IndexOf(id)]; }
  Job JobOf(JobId id) const { return progress_.jobs().JobOf(id); }
  int64_t PriorityOf(JobId id) const { return graph_.PriorityOf(JobOf(id)); }
  void Seed();
  void AddEvent(const Event& event) {
    events_.push_back(event);
    std::push_heap(events_.begin(), events_.end());
  }
  void TakeEvent();
  void InputArrived(JobId id) {
    if (StepOf(id) >= progress_.end_step()) OpenSteps(StepOf(id));
    if (progress_.Arrive(id)) MakeReady(id);
  }
  void Arrive(JobId id, double sent);
  void MakeReady(JobId id);
  void BeginJoint(JobId id);
  void RecordJob(JobId id, double end);
  void Start(Rank rank, JobId id, double duration);
  void StartTaken(Rank rank, JobId id);
  void End(JobId id);
  void CountEnd(JobId id, const Facts& facts);
  void Send(Rank source, JobId to, Rank target, TensorKind tensor, double bytes);
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
  const std::vector<std::vector<int32_t>> admitted_in_order_;  // SimulatedAdmission::order
  const bool has_pairs_;
  const bool counts_versions_;  // else every member has one version at a time
  HeldVersions versions_;
  SimulationResult result_;
  RankTimes times_;
  AliveActivations alive_;
  Links links_;
  std::vector<RankState> ranks_;
  std::vector<Event> events_;
  // Members that have come to a collective which others have not come to, by step and stage.
  std::map<std::pair<int, int>, std::vector<JobId>> joining_;
  std::vector<Rank> touched_;  // ranks that may have something to dispatch
  RankSet idle_;
  int64_t ended_ = 0;
  double now_ = 0;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_SIMULATION_H_
