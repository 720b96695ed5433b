// Models the links of a simulation: when what a rank sends arrives, and how much went over them. Tensors that
// share a link (network.h) go over it one after the other. Private to the simulator. One thread.
#ifndef WEFT_SCHEDULES_SIMULATOR_LINKS_H_
#define WEFT_SCHEDULES_SIMULATOR_LINKS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
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
  // Refers to `result`, whose ranks are there, and counts in it what rings move. Requires options whose
  // network is of these ranks.
  Links(const SimulationOptions& options, SimulationResult* result);

  // Sends bytes now; returns when they arrive.
  double Send(double now, Rank source, Rank target, double bytes) {
    const Path path = PathOf(source, target);
    if (path.bandwidth <= 0) return now + path.latency;
    const double sent = std::max({now, free_[path.out], free_[path.in]}) + bytes / path.bandwidth;
    free_[path.out] = free_[path.in] = sent;
    return sent + path.latency;
  }

  // A ring among the members starts now: in each turn each sends and receives all but one of n parts of
  // `bytes` once, in n - 1 rounds. After the first turn each has the sum of one part, after the second one
  // all. Returns how long it takes.
  double RunRing(double now, const std::vector<Rank>& members, int turns, double bytes);

 private:
  // The two ends that a transfer takes, which are the same where one link is shared.
  struct Path {
    size_t out, in;  // indexes into free_
    double bandwidth, latency;
  };
  Path PathOf(Rank source, Rank target) const {
    const bool inside = node_of_rank_.empty() || node_of_rank_[source] == node_of_rank_[target];
    if (inside && !pairs_.empty()) {
      const auto pair = pairs_.find(std::minmax(source, target));
      if (pair != pairs_.end())
        return Ends(source, target, ranks_, 0, pair->second.bandwidth, pair->second.latency);
    }
    if (inside) return Ends(source, target, ranks_, 0, bandwidth_, latency_);
    return Ends(node_of_rank_[source], node_of_rank_[target], nodes_, first_of_nodes_, bandwidth_between_,
                latency_between_);
  }
  Path Ends(size_t source, size_t target, size_t count, size_t first, double bandwidth,
            double latency) const {
    if (sharing_ == LinkSharing::kPort) return {first + source, first + count + target, bandwidth, latency};
    if (sharing_ == LinkSharing::kPairHalf && source > target) std::swap(source, target);
    const size_t link = first + source * count + target;
    return {link, link, bandwidth, latency};
  }

  const LinkSharing sharing_;
  const double bandwidth_, latency_, bandwidth_between_, latency_between_;
  SimulationResult* const result_;
  const size_t ranks_, nodes_;
  std::vector<int> node_of_rank_;                    // empty if all are on one node
  std::map<std::pair<Rank, Rank>, PairLink> pairs_;  // the lower rank first
  size_t first_of_nodes_ = 0;                        // index of the first link between nodes in free_
  std::vector<double> free_;                         // when the link, or the end of one, has sent all
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_LINKS_H_
