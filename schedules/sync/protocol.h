// Declares how the ranks that hold one stage come to the same weights: a protocol, as a value.
//
// A Protocol answers, for one stage: which ranks hold it and what each of them does; which edges its reduces
// and updates have, and its compute jobs for the sake of weights and sums; what each holder keeps in memory;
// and which operations a rank performs for a job, in order. A Sync is the choice of a schedule: it makes the
// protocols of all stages. Each protocol is one file of this folder, and catalogue.h names them all. The rest
// of Weft asks only the questions below; but what migrating states cannot be combined with is tested by name
// (IsMigrating).
//
// Pure; immutable once made. A protocol refers to no graph, so that graphs can be copied and moved.
#ifndef WEFT_SCHEDULES_SYNC_PROTOCOL_H_
#define WEFT_SCHEDULES_SYNC_PROTOCOL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "schedules/graph/edge.h"
#include "schedules/run_terms.h"
#include "schedules/schedule.h"

namespace weft {

class Graph;
class JointOrder;
class StateRoute;

// The place where a compute job finds the weights of its stage.
enum class Layout : uint8_t {
  kWhole,       // with the holder that Schedule::weights names
  kSliced,      // a slice with each holder; the job puts them together
  kTravelling,  // in the stage's state, which comes to the rank of the job (state_route.h)
};

// One rank of those that hold a stage.
struct Holder {
  Rank rank = 0;
  bool steps = true;           // its updates are optimizer steps; else they install a version made elsewhere
  bool installs_late = false;  // they install a version a step later, once no job reads the one before
  bool saves = false;          // it writes the stage, or its slice of it, into checkpoints
  bool reduces = false;        // a reduce of its own sums the gradients before its update
  bool gives_norm = false;     // gradients are clipped, and that reduce gives the norm of its sum
  bool totals_norm = false;    // that reduce also adds up the norms of all stages
};

// The memory that a holder keeps for the stage whatever it computes, as multiples of the stage's parameters.
struct Kept {
  int parts = 1;            // all that follows is one slice of so many
  int versions = 1;         // of the weights
  int leaving = 0;          // versions on their way to readers on other ranks
  bool optimizer = true;    // the optimizer's state
  int sums = 1;             // gradient sums in progress, one for each step under way
  int parts_of_sum = 1;     // of each sum, one part of so many
  bool whole_sums = false;  // sums are of the whole stage until they are scattered
  int waiting = 0;          // finished sums that wait for other holders, or for the norm
  int sums_leaving = 0;     // sums on their way to other holders while the next ones are made
};

// The word of an operation that a rank performs for a job.
enum class Operation : uint8_t {
  kBeginState,       // takes up the initial state of the stage
  kReceiveState,     // takes up the state that came from the stop before
  kJoinGather,       // gives its slice to the joint gather of the weights; what follows is behind that
  kGatherWeights,    // puts the weights together from slices that came
  kKeepWeights,      // keeps the weights that came for later micro-batches of the rank on the stage
  kForward,          // computes, and keeps what the backward needs
  kForwardOnly,      // computes, and keeps nothing: the backward is on another rank
  kRemakeForward,    // computes the forward again from its inputs, which came
  kBackward,         // computes the gradients of the inputs, of the parameters, or both
  kHandOutGradient,  // the gradient of the parameters leaves the job
  kAddToSum,         // adds it to the running sum that came, which leaves the job in its place
  kAccumulate,       // adds the gradients of micro-batches as they come, in order
  kAllReduce,        // gives its sum to a joint sum, and gets the whole; what follows is behind that
  kReduceScatter,    // the same, and gets its slice
  kSumSquares,       // takes the sum of squares, and adds those that came
  kStep,             // the optimizer makes the next version
  kClippedStep,      // the same, by the norm that came
  kInstallWeights,   // takes up the version that came
  kDropVersion,      // drops the version that no later job reads
  kSendState,        // gives the state to the next stop
};
inline constexpr int kOperations = static_cast<int>(Operation::kSendState) + 1;

// Returns the word: "gather_weights", "all_reduce", ..
absl::string_view OperationName(Operation operation);

class Protocol {
 public:
  virtual ~Protocol() = default;

  // Returns the ranks that hold the stage, ascending; a job's `member` is an index here.
  const std::vector<Rank>& ranks() const { return ranks_; }
  const Holder& holder(int member) const { return holders_[member]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  // Returns the first holder whose updates are optimizer steps.
  int home() const { return home_; }
  // Returns the version that the member has behind the update, and the update behind which it has a version.
  int VersionBehind(const Job& update) const {
    return update.step + 1 - holders_[update.member].installs_late;
  }
  Job UpdateTo(int version, int member) const {
    return Job::Update(version - 1 + holders_[member].installs_late, stage_, member);
  }
  Layout layout() const { return layout_; }

  // Returns true if some holder has a reduce.
  bool has_reduce() const { return has_reduce_; }
  // A micro-batch's gradient leaves its job as it is; or it joins a running sum, which leaves the job.
  // Otherwise the rank that computes it adds it to a sum of its own.
  bool gradients_leave() const { return gradients_leave_; }
  bool passes_sums() const { return passes_sums_; }
  // Returns true if the holders' reduces are one operation of their devices.
  bool reduces_jointly() const { return joint_ != nullptr; }
  // Returns true if that operation gives each holder its slice of the sum, not all of it.
  bool scatters_sum() const { return reduces_jointly() && layout_ == Layout::kSliced; }
  // Returns the order of joint operations, the same of all stages; null where the holders' reduces are none.
  const JointOrder* joint_order() const { return joint_.get(); }
  // Returns the route of the stage's state; null but for Layout::kTravelling.
  const StateRoute* route() const { return route_.get(); }

  // Appends the job's predecessors for the sake of weights, sums and states. Jobs are of this stage.
  virtual void AddPredecessors(const Graph& graph, const Job& job, Edges* edges) const = 0;
  // Appends the edges along which `sum`, a reduce or update that sums gradients, gets these.
  virtual void AddGradients(const Graph& graph, const Job& sum, Edges* edges) const;
  virtual Kept KeptBy(const Graph& graph, int member) const;
  // Appends what the job's rank does, in order.
  virtual void AddOperations(const Graph& graph, const Job& job, std::vector<Operation>* operations) const;

 protected:
  // Held by the ranks that Schedule::weights names, or by these.
  Protocol(const Schedule& schedule, int stage);
  Protocol(int stage, std::vector<Rank> ranks);
  Protocol(const Protocol&) = default;

  // Appends the edge from the version that the job reads, where holders have the weights as a whole.
  void AddWeights(const Graph& graph, const Job& reader, Edges* edges) const;
  // Appends the edge from the update before.
  static void AddUpdateBefore(const Job& update, Edges* edges);

  // Gives every holder a reduce.
  void ReduceAll();

  int stage_ = 0;
  std::vector<Rank> ranks_;
  std::vector<Holder> holders_;  // by member
  int home_ = 0;
  Layout layout_ = Layout::kWhole;
  bool has_reduce_ = false, gradients_leave_ = false, passes_sums_ = false;
  bool weights_leave_ = false;  // jobs of other ranks compute with a holder's weights
  std::shared_ptr<const JointOrder> joint_;
  std::shared_ptr<const StateRoute> route_;
};

using Protocols = std::vector<std::shared_ptr<const Protocol>>;  // by stage

class Sync {
 public:
  // The steps [first, end) of a run.
  struct Steps {
    int first, end;
  };
  virtual ~Sync() = default;
  // Returns the name in run files.
  virtual std::string name() const = 0;
  // Requires a schedule that Check takes.
  virtual Protocols Make(const Schedule& schedule, Steps steps) const = 0;
  // Returns InvalidArgument, naming job, rank or feature, for a scheme or terms that it cannot serve.
  virtual absl::Status Check(const RunSchedule&) const { return absl::OkStatus(); }
  // Returns how many ranks hold the stage, where Schedule::weights does not say so.
  virtual std::optional<int> CountHolders(int /*stage*/) const { return std::nullopt; }
  // Returns why no stage's devices may sum by joint operations; empty if they may.
  virtual std::string WhyNotJoint() const { return ""; }
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SYNC_PROTOCOL_H_
