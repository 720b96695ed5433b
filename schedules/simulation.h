// One simulation under way: the state of the ranks, the events to come, and what they will have cost. Private
// to the simulator: shared by simulate.cc, which says what happens when, and simulate_transfers.cc, which
// says what of it goes from rank to rank. One thread; once.
#ifndef WEFT_SCHEDULES_SIMULATION_H_
#define WEFT_SCHEDULES_SIMULATION_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/admission.h"
#include "schedules/dispatch.h"
#include "schedules/graph.h"
#include "schedules/held_versions.h"
#include "schedules/memory.h"
#include "schedules/simulate.h"
#include "schedules/step_edges.h"

namespace weft {

class Simulation {
 public:
  Simulation(const Graph& graph, const SimulationOptions& options)
      : run_(OfRun(graph, options)),
        graph_(run_.has_value() ? *run_ : graph),
        options_(options),
        schedule_(graph_.schedule()),
        edges_(graph_),
        admission_(graph_),
        // As in a run, whose holders keep for its checkpoint what later steps would read.
        versions_(graph_, HeldVersions::Steps{options.steps, 0, /*saved=*/true}) {}

  absl::StatusOr<SimulationResult> Run();

 private:
  static constexpr double kEnds = -1;
  static constexpr double kNothingCame = std::numeric_limits<double>::infinity();

  struct JobInfo {
    int32_t stage;
    JobKind kind;
    double duration;
    bool beside;  // may run beside the forward before it
    bool apart;   // the micro-batch's forward and backward are on different ranks
    bool collective;
  };
  struct Row {
    std::vector<int32_t> waiting;
    int left = 0;
    // By rank: its jobs of the step that have not ended, and those of micro-batches among them.
    std::vector<int32_t> left_of_rank, compute_left;
  };
  struct Event {
    double time;
    int64_t job;  // step * jobs_per_step + index
    double sent;  // of an input that arrives; kEnds for the end of the job
    bool arrival() const { return sent != kEnds; }
    bool operator<(const Event& o) const { return time > o.time; }
  };
  struct RankState {
    ReadyJobs ready;
    int running = 0;
    bool forward_running = false;
    int activations = 0;
    double activation_bytes = 0;
    double busy_until = 0;
    // While it is idle: for which cause, and since when.
    double idle_since = 0;
    IdleCause cause = IdleCause::kDependency;
    // What arrived at this instant, and made a job ready, was sent then.
    double awaited_since = kNothingCame;
    int step = 0;  // all of its jobs before have ended
  };

  static std::optional<Graph> OfRun(const Graph& graph, const SimulationOptions& options);
  absl::Status CheckOptions() const;
  void Prepare();
  absl::Status SetBudgets();
  absl::Status SetClaims();
  Row& RowOf(int step);
  Rank RankAt(int64_t id) const { return rank_of_[(id / n_) % schedule_.period][id % n_]; }
  Job JobOf(int64_t id) const { return graph_.JobAt(static_cast<int>(id / n_), static_cast<int>(id % n_)); }
  double OutputBytes(int stage) const {
    return OfStage(options_.output.empty() ? options_.activation : options_.output, stage);
  }
  double BytesOf(TensorKind tensor, int from_stage, int to_stage) const;
  double StateBytes(const Job& to) const;
  void InputArrived(int64_t id);
  void Arrive(int64_t id, double sent);
  void MakeReady(int64_t id);
  bool EndsTogether(const JobInfo& from, const StepEdges::Successor& successor) const;
  void JoinCollective(int64_t id);
  double TimeOfCollective(int stage);
  void End(int64_t id);
  void Transfer(Rank source, int64_t to, TensorKind tensor, int from_stage);
  void Seed();
  void Start(Rank rank, int64_t id, double duration);
  void StartTaken(Rank rank, int64_t id);
  double DurationOf(const Job& job) const;
  void DispatchAll();
  IdleCause CauseOf(Rank rank);
  // The rank, which computes nothing now, was idle for its cause until now and is for `next` from now on.
  void NoteIdle(Rank rank, IdleCause next);
  void CloseIdle(Rank rank);
  void AddIdle(Rank rank, IdleCause cause, double start, double end);
  void CountEnd(int64_t id, const JobInfo& info, Rank rank);
  absl::Status Stuck() const;
  bool IsOneStageARank() const;
  SimulationResult Summarize();

  const std::optional<Graph> run_;  // where the graph depends on the number of steps, and has another
  const Graph& graph_;
  const SimulationOptions& options_;
  const Schedule& schedule_;
  const StepEdges edges_;
  AdmissionOrder admission_;
  int64_t n_ = 0;
  std::vector<JobInfo> info_;
  std::vector<std::vector<Rank>> rank_of_;  // [step mod period][index]
  std::vector<RankState> ranks_;
  // [step mod period]: forwards of limited stages in claim order, by index; empty where admission needs none.
  std::vector<std::vector<int32_t>> claims_;
  // [step mod period], by rank: jobs, and those of micro-batches among them.
  std::vector<std::vector<int32_t>> jobs_of_rank_, compute_of_rank_;
  std::deque<Row> rows_;
  int first_row_ = 0;  // step of rows_.front()
  std::vector<Event> events_;
  std::vector<double> link_free_;  // [from * ranks + to]
  // By step and stage: members that have come to a collective which others have not come to.
  std::map<std::pair<int, int>, std::vector<int64_t>> joining_;
  HeldVersions versions_;
  std::vector<Rank> touched_;  // ranks that may have something to dispatch
  int64_t done_ = 0;
  double now_ = 0;
  int live_ = 0;  // activations over all ranks
  double live_bytes_ = 0;
  SimulationResult result_;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATION_H_
