// Keeps the state of a run's stages in this process's memory: copies that its own ranks saved, and those that
// came from other processes, behind the last few steps.
//
// It outlives the attempts of the run: an attempt that begins with copies reads them here, and hands them to
// others from here. The coordinator says which are dropped. Copies of one run at a time are kept.
//
// Invariants: a copy is the one that was first put under its key; what is read later stays as it is as long
// as its tensor is kept. Thread-safe.
#ifndef WEFT_WORKER_SHELL_LOOP_KEPT_COPIES_H_
#define WEFT_WORKER_SHELL_LOOP_KEPT_COPIES_H_

#include <compare>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "proto/session/messages.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class KeptCopies {
 public:
  // The attempt that saved a part, and behind which step.
  struct Key {
    uint64_t epoch = 0;
    int step = 0;
    StatePart part;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  // Drops all copies of any other run.
  void BeginRun(uint64_t run);
  // Keeps what a rank saved in the attempt: a place of SnapshotWriter.
  absl::Status Put(uint64_t run, uint64_t epoch, const StageSnapshot& snapshot);
  // Keeps a copy that has come from another process.
  void Put(uint64_t run, const Key& key, Tensor copy);
  // NotFound, naming the part, where it is not here.
  absl::StatusOr<Tensor> Find(uint64_t run, const Key& key) const;
  // Drops all copies of the run but those of the epoch from the step on; of epoch 0, which there is none of,
  // all that will ever come.
  void Drop(uint64_t run, uint64_t epoch, int step);

  // Adds the bytes that are kept to the report of a rank: they are the process's.
  void AddTo(RankReport* report) const;
  // Return the bytes that are kept, and the most that have been since the run began.
  int64_t bytes() const;
  int64_t peak_bytes() const;

 private:
  void Add(const Key& key, Tensor copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  uint64_t run_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, Tensor> copies_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0, peak_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_KEPT_COPIES_H_
