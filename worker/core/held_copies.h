// Records which copies of which runs' states are in this process's memory and reported to the coordinator, so
// that it can report them to another one (docs/design/recovery.md).
//
// Copies outlive the attempt that made them, and the process's part in it. Invariant: what DropCopies names
// is dropped here when it is dropped in memory. Pure; one thread.
#ifndef WEFT_WORKER_CORE_HELD_COPIES_H_
#define WEFT_WORKER_CORE_HELD_COPIES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "worker/core/worker_effects.h"

namespace weft {

class HeldCopies {
 public:
  // Drops the copies of any other run: a process keeps those of one.
  void BeginRun(uint64_t run);
  // Notes a report of the present run, whose assignment this is.
  void Note(const CopiesHeld& held, const Assign& assign);
  void Drop(const DropCopies& drop);

  bool empty() const { return steps_.empty(); }
  // Tells all of them again.
  void Tell(WorkerEffects* out) const;

 private:
  using Key = std::tuple<uint64_t, uint64_t, int32_t>;  // run, epoch, step
  struct Step {
    std::string run_id;
    ReductionMode reduction = ReductionMode::kOrdered;
    std::set<StatePart> parts;
  };

  std::map<Key, Step> steps_;
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_HELD_COPIES_H_
