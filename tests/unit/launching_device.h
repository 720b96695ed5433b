// Makes up a device that is given jobs ahead, on whose ranks the numbers of the simulated world are computed
// (tests/simulation/world_values.h), and a transport that carries its memory.
//
// Its memory is not the host's: a tensor for another process is copied to the host first, and a job copies a
// tensor from there to the device, unless the transport carries it. A rank computes what the plain loop does,
// so that the final weights tell whether every job ran once, on the right inputs, when they were there.
#ifndef WEFT_TESTS_UNIT_LAUNCHING_DEVICE_H_
#define WEFT_TESTS_UNIT_LAUNCHING_DEVICE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "schedules/graph/graph.h"
#include "tests/unit/device_queue.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/transport/transport.h"

namespace weft {

class LaunchingDevice final : public Device {
 public:
  explicit LaunchingDevice(int launch_ahead) : launch_ahead_(launch_ahead) {}

  absl::string_view name() const override { return "launching"; }
  void PrepareThread() override;
  int launch_ahead() const override { return launch_ahead_; }
  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const ScheduledRun&, Rank, MemorySource&) override;

  // Sets the graph of the run, before it begins.
  void set_graph(const Graph* graph) { graph_ = graph; }
  // Returns what ranks saved last, by stage: the newest version and its value.
  std::map<std::pair<Rank, int>, std::pair<int, Value>> saved();
  int ranks();  // that are there
  // HoldAt holds the thread that begins this job for ever; holds says whether one is held.
  void HoldAt(const Job& job) { hold_at_ = job; }
  bool holds() const { return holds_; }
  // Holds threads that end a rank likewise.
  void HoldEnds() { hold_ends_ = true; }

  DeviceQueue queue;

 private:
  friend class LaunchingRank;
  const int launch_ahead_;
  const Graph* graph_ = nullptr;
  std::optional<Job> hold_at_;  // set before the run begins
  std::atomic<bool> holds_{false}, hold_ends_{false};
  Mutex mu_;
  std::map<std::pair<Rank, int>, std::pair<int, Value>> saved_ ABSL_GUARDED_BY(mu_);
  int ranks_ ABSL_GUARDED_BY(mu_) = 0;
};

// Makes a transport that carries `device`'s memory too: an arriving tensor lies in memory of the sender, or
// of the transport, which is poisoned when the receiver gives it up.
std::unique_ptr<Transport> CarryDeviceMemory(std::unique_ptr<Transport> transport, DeviceQueue* queue);

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_LAUNCHING_DEVICE_H_
