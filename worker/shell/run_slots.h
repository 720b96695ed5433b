// Serves several runs at a time in one worker process, with a slot for each (run_slot.h).
//
// When one slot comes to its end, so does the process: the coordinator has ended that worker, or something is
// wrong that the others share. They leave their runs first.
//
// Threads: Serve is called once; Snapshot, Problem and Stall from any thread; the others before or behind
// Serve. Ownership: borrows what the slots borrow.
#ifndef WEFT_WORKER_SHELL_RUN_SLOTS_H_
#define WEFT_WORKER_SHELL_RUN_SLOTS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/run_slot.h"

namespace weft {

class RunSlots {
 public:
  // Opens `runs` slots, whose workers are called as `options` say: NAME, NAME-2, .. Failure as RunSlot::Open.
  static absl::StatusOr<std::unique_ptr<RunSlots>> Open(int runs, const RunSlot::Options& options,
                                                        Device& device, DaemonLog& log);

  std::vector<RunSlot*> all() const;

  void Register();
  // Serves until every slot has come to its end. Calls `stop_others`, on any thread, when one has and others
  // have not. Returns how the first ended.
  absl::Status Serve(const std::function<void()>& stop_others);
  // Returns the figures of all slots together.
  WorkerSnapshot Snapshot() const;
  // Returns why the process is of no use though it lives; "" while it is of use.
  std::string Problem() const;
  // Returns the part of that which needs no lock (WorkerLoop::Stall).
  std::string Stall() const;
  // Returns the coordinator's reason to end a worker of this process; "" for none.
  std::string ReasonToEnd() const;
  void Close();

 private:
  using Slots = std::vector<std::unique_ptr<RunSlot>>;
  explicit RunSlots(Slots slots) : slots_(std::move(slots)) {}

  const Slots slots_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_RUN_SLOTS_H_
