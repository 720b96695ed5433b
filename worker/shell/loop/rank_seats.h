// Seats the ranks of a run: each has a seat, which does one task at a time, with the rank's compute and the
// figures of what it sent and kept.
//
// If the schedule has overlapped pairs, a rank has a second seat, for the jobs that start beside a forward.
// The device orders the second of a pair by what the first waits for, so it must hear of the first first: a
// job beside a forward is held until that has begun.
//
// Invariants:
//   1. A seat has at most one task.
//   2. A rank's compute stays until its seat's EndTask.
// Not thread-safe; the owner locks. Computes are used without the lock, on the threads that do their ranks'
// tasks, from the rank's preparation to its end. Ownership: owns tasks and computes.
#ifndef WEFT_WORKER_SHELL_LOOP_RANK_SEATS_H_
#define WEFT_WORKER_SHELL_LOOP_RANK_SEATS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/session/messages.h"
#include "worker/core/worker_core.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/rank_tasks.h"

namespace weft {

struct Seat {
  int index = 0;
  Rank rank = -1;
  std::unique_ptr<RankCompute> compute;
  // The seat for the rank's jobs beside a forward; no rank sits there. Null without pairs.
  Seat* second = nullptr;
  bool begun = false;           // true once the rank's present job, or its last, has begun
  std::optional<JobTask> held;  // job for `second`, until the present one has begun
  RankTask task;
  bool ending = false;  // true while its rank ends, on a thread
  std::vector<int> saved_stages;
  std::array<uint64_t, kTensorKinds> bytes_sent{}, bytes_received{};
  std::map<int32_t, int64_t> activation_bytes;                // by stage: most bytes that a forward kept
  std::map<std::pair<JobKind, int32_t>, JobBytes> job_bytes;  // by kind and stage: the most of each figure
};

class RankSeats {
 public:
  // Seats the ranks of a run that begins.
  void Place(const Assign& assign, bool pairs);
  // Forgets the ranks of a run; their computes have ended.
  void Clear();

  // Returns the number of seats, of which there are never fewer.
  size_t size() const { return seats_.size(); }
  Seat& At(int index) const { return *seats_[index]; }
  // Returns the seat of a rank; null for one of another process.
  Seat* Of(Rank rank) {
    return rank >= 0 && rank < static_cast<Rank>(seat_of_rank_.size()) ? seat_of_rank_[rank] : nullptr;
  }

  // Gives a job to the rank's seat, or its second. Returns the seat that has it now; nothing if it is held.
  std::optional<int> Start(JobTask job);
  // Notes that the rank's job in turn has begun. Returns the seat that has the job beside it now, if there is
  // one.
  std::optional<int> NoteBegun(Rank rank);
  // Notes how many bytes a forward of the stage kept.
  void NoteActivationBytes(Rank rank, int stage, int64_t bytes);
  // Notes what a job that ran alone took.
  void NoteJobBytes(Rank rank, const Job& job, const JobBytes& bytes);
  // Gives each seat with a compute the task to end it, and returns the seats.
  std::vector<int> End();
  // Returns a rank that ends; nothing if none does.
  std::optional<Rank> FindEnding() const;

  // Takes the computes out, to be kept for as long as a device may touch them.
  std::vector<std::unique_ptr<RankCompute>> Release();

 private:
  std::deque<std::unique_ptr<Seat>> seats_;
  std::vector<Seat*> seat_of_rank_;  // null: the rank is in another process
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RANK_SEATS_H_
