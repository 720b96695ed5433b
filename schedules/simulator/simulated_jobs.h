// Tabulates the jobs of a simulation: what a job costs and does, and which jobs wait for it, by index. A
// table serves every step of its phase of the period; where edges depend on the steps of the run, each open
// step has its own. Private to the simulator.
#ifndef WEFT_SCHEDULES_SIMULATOR_SIMULATED_JOBS_H_
#define WEFT_SCHEDULES_SIMULATOR_SIMULATED_JOBS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"
#include "schedules/simulator/simulate.h"

namespace weft {

// The cost of the operations of a job (sync/protocol.h) beyond its duration. A simulation charges by these
// words, whatever protocol gives them.
struct OperationCharge {
  int stage = 0;
  bool keeps_nothing = false;  // a forward whose backward is on another rank
  bool remakes = false;        // a backward that begins with the forward
  bool takes_slices = false;   // the weights come to it in slices, from all holders
  bool gives_slices = false;   // gradients leave it in slices, one for each holder
  bool accumulates = false;    // it sums gradients that come, its holder's slice of each
  bool adds_to_sum = false;    // it adds its own to a running sum, which comes
  // Number of times that parts of the gradient go around the ring of the holders: once until each has the sum
  // of one part, twice until each has all; 0 for an operation that is not joint.
  int ring_turns = 0;
};
OperationCharge ChargeOf(const Graph& graph, const Job& job);

// Seconds and bytes of jobs and tensors, as the options give them. Refers to both.
class JobCosts {
 public:
  JobCosts(const Graph& graph, const SimulationOptions& options) : graph_(graph), options_(options) {}

  double DurationOf(const Job& job, const OperationCharge& charge) const;
  // Returns the extra time of the rank's first micro-batch of a step on the stage.
  double ColdTime(int stage, Rank rank) const;
  // Returns the bytes of a tensor from one job to another, but for a state.
  double BytesOf(TensorKind tensor, const OperationCharge& from, const OperationCharge& to) const;
  // Returns the bytes of the state that comes to the job: all live versions, and what is kept beside them.
  double StateBytes(const Job& to) const;

 private:
  // Return the time of the job alone, and of its sums of gradients, on a rank of speed 1.
  double WorkOf(const Job& job) const;
  double SumsOf(const Job& job, const OperationCharge& charge) const;
  double OutputBytes(int stage) const;
  double SliceBytes(int stage) const;

  const Graph& graph_;
  const SimulationOptions& options_;
};

// Tells whether the edge holds nobody back because it joins members of one collective. A collective ends for
// all members at once, also for the one that totals the norm: the squares of the others' slices are a few
// bytes.
bool EndsTogether(const Graph& graph, const Edge& edge);

class SimulatedJobs {
 public:
  // Bits of Facts::flags.
  enum Flag : uint16_t {
    kComputes = 1,           // it has a micro-batch
    kAdmits = 2,             // it is a forward
    kOverlapped = 4,         // it may run beside the forward before it
    kJoint = 8,              // it is a joint operation of its stage's holders
    kFetches = 16,           // it computes with weights of another rank
    kBeginsActivation = 32,  // from its start an activation is alive
    kEndsActivation = 64,    // and none from its end
    kReleases = 128,         // its end gives a place of its stage's limit back
    kTakesNoTime = 256,      // its duration is 0
    kEndIsNoted = 512,       // its end counts for more than the jobs behind it: an update, or a fetch
  };
  struct Facts {
    double duration;
    double activation;  // bytes
    // Graph::PriorityOf in the first period of steps, and what it grows by in each: the same in all of them
    // (schedule.h).
    int64_t priority, growth;
    Rank rank;
    int32_t stage;
    int32_t first_output;
    JobKind kind;
    uint16_t flags;
  };
  // Says how far a job's output goes: to a job of the same step, there at once or sent from rank to rank, or
  // to a job of another step.
  enum class Reach : uint8_t { kHere, kOtherRank, kOtherStep };
  // A job that waits for another, and what it takes to come there.
  struct Output {
    int32_t index;
    int16_t distance;  // steps ahead
    TensorKind tensor;
    bool sent;  // from rank to rank; else it is there at once
    Reach reach;
    Rank target;
    double bytes;  // not of a state
  };
  struct Table {
    std::vector<Facts> jobs;      // by index, and one more
    std::vector<Output> outputs;  // of job i: [jobs[i].first_output, jobs[i + 1].first_output)

    absl::Span<const Output> OutputsOf(int32_t i) const {
      const int32_t begin = jobs[i].first_output;
      return {outputs.data() + begin, static_cast<size_t>(jobs[i + 1].first_output - begin)};
    }
  };

  SimulatedJobs(const Graph& graph, const JobCosts& costs, const SimulationOptions& options,
                const StepEdges& edges, const JobTable& jobs);

  // Returns the table of an open step.
  const Table& At(int step) const { return only_ != nullptr ? *only_ : OfStep(step); }
  int period() const { return period_; }
  // Returns the priority of the job of a step that has these facts.
  int64_t PriorityOf(int step, const Facts& facts) const {
    return facts.priority + (period_ == 1 ? step : step / period_) * facts.growth;
  }
  void Open(int step) {
    if (of_run_) of_step_.emplace(step, MakeTable(step));
  }
  void Leave(int step) {
    if (of_run_) of_step_.erase(step);
  }

 private:
  const Table& OfStep(int step) const { return of_run_ ? of_step_.at(step) : of_phase_[jobs_.PhaseOf(step)]; }
  Table MakeTable(int step) const;
  void AddCold(int step, Table* table) const;
  std::pair<int64_t, int64_t> PriorityLineOf(const Job& job) const;
  Facts MakeFacts(const Job& job, const OperationCharge& charge) const;
  std::vector<OperationCharge> ChargesOf(int step) const;

  const Graph& graph_;
  const JobCosts& costs_;
  const SimulationOptions& options_;
  const StepEdges& edges_;
  const JobTable& jobs_;
  const bool of_run_;
  const int period_;
  std::vector<std::vector<OperationCharge>> charges_;  // by phase and index; empty where steps have their own
  std::vector<Table> of_phase_;
  std::map<int, Table> of_step_;
  const Table* only_ = nullptr;  // where one table serves all steps
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_SIMULATED_JOBS_H_
