// Keeps the state of a run's stages in this process's memory: copies that its own ranks saved, and those that
// came from other processes, behind the last few steps.
//
// It outlives the attempts of the run: an attempt that begins with copies reads them here, and hands them to
// others from here. The coordinator says which are dropped. Copies of one run at a time are kept.
//
// Invariants: a copy is the one that was first put under its key; what is read later stays as it is as long
// as its tensor is kept. Copies of its own lie in the memory of snapshots, which counts them; those that came
// are counted here. Thread-safe.
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
#include "worker/shell/checkpoint/snapshot_memory.h"
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

  // Borrows `memory`.
  explicit KeptCopies(SnapshotMemory& memory) : memory_(memory) {}

  // Drops all copies of any other run.
  void BeginRun(uint64_t run);
  // Keeps what a rank saved in the attempt: a place of SnapshotWriter.
  absl::Status Put(uint64_t run, uint64_t epoch, const StageSnapshot& snapshot);
  // Keeps a copy that has come from another process.
  void Put(uint64_t run, const Key& key, Tensor copy);
  // Returns NotFound, naming the part, where it is not here.
  absl::StatusOr<Tensor> Find(uint64_t run, const Key& key) const;
  // Drops all copies of the run but those of the epoch from the step on; of epoch 0, which there is none of,
  // all that will ever come.
  void Drop(uint64_t run, uint64_t epoch, int step);

  // Adds the bytes of the copies that came to the report of a rank: they are the process's.
  void AddTo(RankReport* report) const;
  // Return the bytes of the copies that came, and the most that there have been since the run began.
  int64_t bytes() const;
  int64_t peak_bytes() const;

 private:
  struct Copy {
    Tensor tensor;
    bool arrived = false;  // from another process
  };
  void Add(uint64_t run, const Key& key, Copy copy) ABSL_LOCKS_EXCLUDED(mutex_);

  SnapshotMemory& memory_;
  mutable Mutex mutex_;
  uint64_t run_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, Copy> copies_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0, peak_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_KEPT_COPIES_H_
