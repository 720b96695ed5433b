// Has all ranks of this process do one thing each, on the threads of their seats: prepare, begin with copies
// of their state, save their stages, and end.
//
// Such a round is over when the last rank is done; then its owner learns how, with the first failure. Jobs
// are no part of it: none runs while a round is under way.
//
// Invariants: one round at a time. A rank's part runs outside the owner's lock, since files and a device's
// driver may take their time.
// Threads: everything is called with the owner's lock held; Do releases it meanwhile. Ownership: borrows
// threads, seats and device. Failure: of compute or files, in what Do returns.
#ifndef WEFT_WORKER_SHELL_LOOP_RANK_ROUNDS_H_
#define WEFT_WORKER_SHELL_LOOP_RANK_ROUNDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "worker/core/worker_effects.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/checkpoint_work.h"
#include "worker/shell/loop/rank_seats.h"
#include "worker/shell/loop/rank_tasks.h"
#include "worker/shell/loop/work_threads.h"
#include "worker/shell/memory/memory_source.h"

namespace weft {

class RankRounds {
 public:
  enum class Round : uint8_t { kPrepare, kResume, kSave, kEnd };
  // A round that is over.
  struct Over {
    Round round = Round::kPrepare;
    absl::Status status;  // the first failure
    int step = 0;         // step of the checkpoint, for kSave
  };

  RankRounds(Mutex& mu, WorkThreads& threads, RankSeats& seats, Device& device, MemorySource& memory)
      : mu_(mu), threads_(threads), seats_(seats), device_(device), memory_(memory) {}

  // Begin a round. Require that none is under way.
  void Prepare(const PrepareEffect& effect, const SharedFolders& folders);
  void Resume(std::map<Rank, ResumeTask> tasks);
  void Save(int step, const std::vector<Rank>& ranks, const SharedFolders& folders);
  // Returns false, and begins none, where no rank has anything to end.
  bool End();

  // Returns true while a round is under way.
  bool busy() const { return remaining_ > 0; }
  // Names the seat's task.
  WorkThreads::Doing TaskAt(int seat) const;
  // Does the task of the seat. Returns the round, if it is over now.
  std::optional<Over> Do(int seat);

 private:
  void Begin(Round round, size_t ranks);
  void Give(Seat& seat, RankTask task);

  Mutex& mu_;
  WorkThreads& threads_;
  RankSeats& seats_;
  Device& device_;
  MemorySource& memory_;
  Over present_;
  int remaining_ = 0;  // ranks that are not done
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RANK_ROUNDS_H_
