// Holds the worker core's state of a run and of its ranks. Private to worker/core. The files that implement
// WorkerCore share it: worker_core.cc starts and ends jobs, worker_begin.cc begins a run, and
// worker_tensors.cc handles tensors that come and go.
#ifndef WEFT_WORKER_CORE_WORKER_RUN_H_
#define WEFT_WORKER_CORE_WORKER_RUN_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/require.h"
#include "proto/session/messages.h"
#include "schedules/dispatch/admission.h"
#include "schedules/dispatch/dispatch.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"
#include "schedules/sync/held_versions.h"
#include "schedules/sync/state_route.h"
#include "worker/core/rank_clock.h"
#include "worker/core/tensor_key.h"
#include "worker/core/worker_core.h"

namespace weft {

// The bits of a job's flags.
inline constexpr uint8_t kClaimed = 1, kQueued = 2, kDone = 4;  // done or launched

struct WorkerCore::RankState {
  RankState(int64_t now, Rank r, Token t, std::vector<std::optional<int>> l, std::optional<int64_t> place,
            std::optional<Tickets> tickets, size_t spans_most)
      : rank(r),
        token(t),
        ready(std::move(l), place, std::move(tickets)),
        clock(now, spans_most),
        spans_most(spans_most) {}

  Rank rank;
  Token token;
  ReadyJobs ready;
  RankClock clock;
  size_t spans_most;  // most spans of idleness, and of transfers
  std::deque<TransferSpan> transfers;
  // The job that Take gave, and the one that TakeBeside gave while that, a forward, ran; each until it ends
  // or is launched.
  int64_t running = -1, beside = -1;
  bool idle() const { return running < 0 && beside < 0; }
  // A job in flight: these, and those that have been launched and are not done, in the order in which they
  // started.
  struct InFlight {
    int64_t id;
    bool beside, launched;
    bool begins;  // it gives its input to a collective, and computes nothing
    RankClock::Given given;
  };
  std::vector<InFlight> in_flight;
  // Counts the jobs in flight that compute.
  int CountInFlight(bool beside) const {
    return static_cast<int>(std::count_if(in_flight.begin(), in_flight.end(), [&](const InFlight& job) {
      return job.beside == beside && !job.begins;
    }));
  }
  // Returns the newest of those in flight that did not start beside another; -1 for none.
  int64_t NewestInFlight() const;
  void Launch(int64_t id);
  // Ends a job. `overlapped`: another job may be computed at the same time as the one that ended.
  RankClock::Given End(int64_t id, bool launched, bool* overlapped);
  std::deque<int64_t> claimed;  // in claim order; ended and launched ones leave from the front
  // Claimed jobs whose weights wait to be wanted, in claim order, and how many others with wanted weights
  // have not ended.
  std::deque<int64_t> fetches;
  int fetching = 0;
  int activations = 0, peak_activations = 0, peak_weight_versions = 0;
  std::vector<int> visiting_versions;  // versions by stage, of the states that are here
  std::vector<bool> measured;          // by stage: true once a forward's bytes have been measured
  int64_t jobs_per_step = 0, jobs_left = 0;
  bool granted = false;  // true once it was granted a job; before, the run has not begun for this rank
  bool touched = false;  // set by Run::Touch
};

struct WorkerCore::Run {
  struct Wanted {
    int64_t job;
    int microbatch;
    int64_t since;
  };
  // The micro-batch gradients of a job that consumes them.
  struct Intake {
    int next = 0;
    std::vector<bool> arrived;
  };

  // A job that begins with a collective: a reduce, or a forward or backward whose weights one gathers.
  struct Joining {
    int left = -1;  // inputs that it waits for before it begins; -1: not counted yet
    bool begun = false;
  };

  Run(const Assign& a, RunShape shape)
      : assignment(a),
        graph(std::move(shape.schedule), shape.steps, shape.first_step),
        admission(graph),
        steps(shape.steps),
        first_step(shape.first_step),
        state_of_rank(StatesOf(a)),
        progress(graph, ProgressOptions()) {}

  // Begin the run, in this order.
  void FindTouchedStages();
  void AddRanks(int64_t time);
  void CountJobs();
  // Returns what the rank has of the stage, or nothing where it neither holds nor computes it.
  std::optional<PrepareEffect::Stage> StageOf(RankState& state, int stage);

  // True if the job's weights or state are wanted in turn (invariant 8).
  bool FetchesInTurn(const Job& job) const {
    if (graph.route() != nullptr) {
      const std::optional<Job> before = graph.route()->Before(job);
      return before.has_value() && !IsLocal(graph.RankOf(*before));
    }
    // Joint operations have their own turns.
    if (!graph.FetchesWeights(job) || graph.GathersWeights(job)) return false;
    // What ranks of this process hold is at hand: such a job may end before its turn would come.
    const std::vector<Rank>& members = graph.members(job.stage);
    if (graph.sync(job.stage).layout() == Layout::kWhole) return !IsLocal(members[graph.SourceOf(job)]);
    return !std::all_of(members.begin(), members.end(), [this](Rank r) { return IsLocal(r); });
  }
  bool IsLocal(Rank rank) const { return state_of_rank[rank] >= 0; }
  RankState& StateOf(Rank rank) { return *ranks[state_of_rank[rank]]; }
  Rank RankAt(JobId id) const { return progress.jobs().RankOf(id); }
  Job JobOf(JobId id) const { return progress.jobs().JobOf(id); }
  JobId IdOf(const Job& job) const { return MakeJobId(job.step, graph.IndexOf(job)); }
  static std::vector<int> StatesOf(const Assign& assign);
  StepProgress::Options ProgressOptions() const;
  // The step of the job, which has not left the window.
  StepProgress::Step& StepWith(JobId id);
  uint8_t& FlagsOf(JobId id) { return StepWith(id).state[IndexOf(id)]; }
  int32_t& MissingOf(JobId id) { return StepWith(id).missing[IndexOf(id)]; }
  // Complete before the run (invariant 2 of graph.h).
  bool IsBeforeRun(const Edge& e) const { return e.from.step < first_step; }
  bool IsInitialWeights(const Edge& e) const { return IsBeforeRun(e) && e.tensor == TensorKind::kWeights; }
  bool ConsumesGradients(const Job& job) const {
    if (HasMicrobatch(job.kind) || !graph.sync(job.stage).gradients_leave()) return false;
    return job.kind == JobKind::kReduce || !graph.sync(job.stage).has_reduce();
  }
  Intake& IntakeOf(int64_t id) {
    Intake& intake = intakes[id];
    if (intake.arrived.empty()) intake.arrived.assign(graph.schedule().microbatches, false);
    return intake;
  }

  std::vector<PrepareEffect::Group> Groups() const;
  Joining& JoiningOf(int64_t id);
  // What the job starts next is its collective.
  bool JointOperationIsNext(int64_t id) { return graph.IsJoint(JobOf(id)) && !JoiningOf(id).begun; }
  // The job's weights are under way, and all else that it needs is here.
  bool AwaitsGather(int64_t id);

  // Notes that the rank's next start, or its cause of idleness, may have changed since StartJobs looked.
  // StartJobs looks at no other rank, so that a job costs the same however many ranks the process has.
  void Touch(RankState& rank) {
    if (!std::exchange(rank.touched, true)) touched.push_back(state_of_rank[rank.rank]);
  }
  void TouchAll() {
    for (const auto& rank : ranks) Touch(*rank);
  }

  // True if the rank takes a snapshot of the stage behind the update, when one of the next step is announced.
  bool IsSaved(const Job& update) const {
    return graph.route() != nullptr || graph.sync(update.stage).holder(update.member).saves;
  }
  bool TakesSnapshot(const Job& job) const {
    return job.kind == JobKind::kUpdate && !snapshots.empty() && snapshots.count(job.step + 1) != 0 &&
           IsSaved(job);
  }

  // Returns how many steps may be under way at a time.
  int StepsAtOnce() const { return 1 + graph.schedule().MostStaleness(); }

  Assign assignment;
  Graph graph;
  AdmissionOrder admission;
  int steps, first_step;
  std::vector<int> state_of_rank;  // of `ranks`; -1 for those of other processes
  StepProgress progress;           // of the jobs of this process
  std::vector<std::unique_ptr<RankState>> ranks;
  std::vector<std::vector<char>> touches;  // by place in `ranks` and stage: whether the rank computes it
  std::vector<int> touched;                // of them
  absl::flat_hash_map<TensorKey, Wanted> wanted;
  absl::flat_hash_map<int64_t, Intake> intakes;
  absl::flat_hash_map<int64_t, Joining> joining;
  std::optional<HeldVersions> versions;  // versions of the ranks of this process
  HeldVersions::Versions dropped;        // dropped versions that are not reported yet
  int64_t now = 0;                       // time of the present event
  // Announced snapshots, by step: stages of this process that are not taken yet.
  std::map<int, int> snapshots;
  bool prepared = false, finishing = false, failed = false, aborted = false;
  int running = 0;  // jobs in flight
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_WORKER_RUN_H_
