// Counts what is written to checkpoints beside the work of a process.
#ifndef WEFT_WORKER_SHELL_LOOP_SNAPSHOT_WRITES_H_
#define WEFT_WORKER_SHELL_LOOP_SNAPSHOT_WRITES_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace weft {

// Totals of the pieces that were written.
struct SnapshotWrites {
  uint64_t bytes = 0;     // of those that were written whole
  int64_t ns = 0;         // time of the threads that wrote
  uint64_t failures = 0;  // pieces that could not be written
};

// Thread-safe.
class SnapshotWriteCounts {
 public:
  void Note(uint64_t bytes, int64_t ns, bool written) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    writes_.bytes += written ? bytes : 0;
    writes_.ns += ns;
    writes_.failures += written ? 0 : 1;
  }
  SnapshotWrites Get() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return writes_;
  }

 private:
  mutable Mutex mu_;
  SnapshotWrites writes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_SNAPSHOT_WRITES_H_
