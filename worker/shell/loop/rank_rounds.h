// Has all ranks of this process do one thing each, on the threads of their seats: prepare, begin with copies
// of their state, save their stages, and end.
//
// A round gives each rank's seat a task (rank_tasks.h). It is over when the last rank is done; then its owner
// learns how, with the first failure. Jobs are no part of it: none runs while a round is under way.
//
// Invariant: one round at a time. Not thread-safe; the owner locks, but for the time of a task. Ownership:
// borrows threads and seats.
#ifndef WEFT_WORKER_SHELL_LOOP_RANK_ROUNDS_H_
#define WEFT_WORKER_SHELL_LOOP_RANK_ROUNDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "worker/core/worker_effects.h"
#include "worker/shell/loop/checkpoint_work.h"
#include "worker/shell/loop/rank_seats.h"
#include "worker/shell/loop/rank_tasks.h"
#include "worker/shell/loop/work_threads.h"

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

  RankRounds(WorkThreads& threads, RankSeats& seats) : threads_(threads), seats_(seats) {}

  // Begin a round. Require that none is under way.
  void Prepare(const PrepareEffect& effect, const SharedFolders& folders);
  void Resume(std::map<Rank, ResumeTask>&& tasks);
  void Save(int step, const std::vector<Rank>& ranks, const SharedFolders& folders);
  // Returns false, and begins none, where no rank has anything to end.
  bool End();

  // Returns true while a round is under way.
  bool busy() const { return remaining_ > 0; }
  // Names the seat's task.
  WorkThreads::Doing TaskAt(int seat) const;
  // Takes the end of a seat's task. Returns the round, if it is over now.
  std::optional<Over> Done(Seat& seat, const absl::Status& status);

 private:
  void Begin(Round round, size_t ranks);
  void Give(Seat& seat, RankTask task);

  WorkThreads& threads_;
  RankSeats& seats_;
  Over present_;
  int remaining_ = 0;  // ranks that are not done
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RANK_ROUNDS_H_
