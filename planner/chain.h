// Describes a model and its machine to the planner: a chain of layers with their times and bytes, ranks with
// a memory and a speed, and the links between them, which may be slower between nodes; and makes the problem
// of a periodic pattern from it once it is said which rank has which layer.
//
// A micro-batch goes forward through the layers 0 to L-1 and backward from L-1 to 0. Any set of layers may be
// on one rank. Between layers on different ranks a transfer occupies a link, forward and backward.
//
// Two ways to count memory, because predictions have to mean what the runtime counts, and the published
// answers what their authors counted:
//   - kKeptActivations: what each layer keeps from the start of its forward to the end of its backward, and
//     what is always there. This is what the simulator counts.
//   - kAllTensors: the count of Beaumont, Eyraud-Dubois and Shilova (HAL hal-02968802v1): a layer keeps its
//     input, what a task reads and writes is there while it runs and until it is read, and every tensor that
//     is sent or received has a buffer for the whole run on both ranks.
// Pure.
#ifndef WEFT_PLANNER_CHAIN_H_
#define WEFT_PLANNER_CHAIN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "planner/pattern.h"

namespace weft {

struct ChainLayer {
  int64_t forward = 0, backward = 0;  // ticks
  int64_t kept = 0;                   // bytes of a micro-batch from its forward to the end of its backward
  int64_t resident = 0;               // bytes that the layer has on its rank at all times
  int64_t output = 0;                 // bytes of its output, and of that output's gradient
  int64_t transfer = 0;               // ticks that the output, or its gradient, occupies a link
  int64_t transfer_between = 0;       // likewise of a link between two nodes
  int64_t sync = 0;                   // ticks that its weights would occupy a link, for replicated stages
  // Bytes of a copy of its output, and of that output's gradient, on a rank that reads it from another one; 0
  // where ranks read in place. For kKeptActivations.
  int64_t copied = 0;
};

// Says what a transfer between two ranks occupies. Ranks of two nodes use the link, or the ports, of the
// nodes.
enum class LinkKind : uint8_t {
  kPairFull,  // a link for each ordered pair of ranks
  kPairHalf,  // one link for each pair, for both directions
  kPort,      // the sending port of one rank and the receiving port of the other
};

enum class MemoryCount : uint8_t { kKeptActivations, kAllTensors };

struct PlannedChain {
  std::vector<ChainLayer> layers;
  int64_t input = 0;  // bytes of the first layer's input; for kAllTensors
  int ranks = 1;
  int64_t memory = kUnlimitedBytes;  // of each rank
  LinkKind links = LinkKind::kPairFull;
  int64_t latency = 0;          // ticks from the end of a transfer to its arrival
  int64_t latency_between = 0;  // likewise between two nodes
  MemoryCount count = MemoryCount::kKeptActivations;
  std::vector<double> speeds = {};  // by rank: what ticks are divided by; empty where all are 1
  std::vector<int> node = {};       // by rank; empty where all are on one node

  // Returns the ticks of a job on the rank.
  int64_t TicksOn(int rank, int64_t ticks) const;
  // Returns the ticks of a layer's forward and backward on the rank.
  int64_t WorkOn(int rank, int layer) const {
    return TicksOn(rank, layers[layer].forward) + TicksOn(rank, layers[layer].backward);
  }
  bool SameNode(int a, int b) const { return node.empty() || node[a] == node[b]; }
  // Returns true if exchanging the ranks changes no plan.
  bool AreAlike(int a, int b) const { return (speeds.empty() || speeds[a] == speeds[b]) && SameNode(a, b); }
  int size() const { return static_cast<int>(layers.size()); }
};

// The rank of each layer.
using Placement = std::vector<int>;

// The problem of a placed chain, and where its jobs are among the tasks.
struct ChainPattern {
  PatternProblem problem;
  std::vector<int> forward, backward;  // by batch * layers + layer: the task
};

// The least speed of a rank; the largest is its reciprocal.
inline constexpr double kLeastPlannedSpeed = 1e-3;

// Returns InvalidArgument, naming the layer, for values that cannot be.
absl::Status CheckChain(const PlannedChain& chain);

// Makes the problem of windows of `batches` micro-batches. Requires a sound chain and a rank for each layer.
ChainPattern PlaceChain(const PlannedChain& chain, const Placement& placement, int batches);

}  // namespace weft

#endif  // WEFT_PLANNER_CHAIN_H_
