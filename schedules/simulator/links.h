// Models the links of a simulation: when what a rank sends arrives, and how much went over them. Each
// ordered pair of ranks has a link of its own, on which tensors go one after the other. Private to the
// simulator. One thread.
#ifndef WEFT_SCHEDULES_SIMULATOR_LINKS_H_
#define WEFT_SCHEDULES_SIMULATOR_LINKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedules/simulator/simulate.h"

namespace weft {

// Counts a tensor that goes from rank to rank so many times.
inline void CountTransfer(Rank source, Rank target, TensorKind tensor, double bytes, int64_t times,
                          SimulationResult* result) {
  RankStats& sent = result->ranks[source];
  RankStats& received = result->ranks[target];
  const double all = bytes * static_cast<double>(times);
  sent.bytes_sent += all;
  sent.sent_by_kind[static_cast<int>(tensor)] += all;
  received.bytes_received += all;
  received.activation_receives += tensor == TensorKind::kActivation ? times : 0;
  received.gradient_receives += tensor == TensorKind::kInputGradient ? times : 0;
}

class Links {
 public:
  // Refers to `result`, whose ranks are there, and counts in them what rings move. `bandwidth` 0 means
  // infinite.
  Links(double bandwidth, double latency, SimulationResult* result);

  // Sends bytes now; returns when they arrive.
  double Send(double now, Rank source, Rank target, double bytes) {
    if (bandwidth_ <= 0) return now + latency_;
    double& free = FreeAt(source, target);
    free = std::max(free, now) + bytes / bandwidth_;
    return free + latency_;
  }

  // A ring among the members starts now: in each turn each sends and receives all but one of n parts of
  // `bytes` once, in n - 1 rounds. After the first turn each has the sum of one part, after the second one
  // all. Returns how long it takes.
  double RunRing(double now, const std::vector<Rank>& members, int turns, double bytes);

 private:
  double& FreeAt(Rank source, Rank target) { return free_[static_cast<size_t>(source) * ranks_ + target]; }

  const double bandwidth_, latency_;
  SimulationResult* const result_;
  const size_t ranks_;
  std::vector<double> free_;  // [from * ranks + to]: when the link has sent all
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_LINKS_H_
