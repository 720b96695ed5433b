// Reads ahead the run's data for the coming micro-batches of a rank, so that a device with memory of its own
// has them there.
//
// One thread reads pieces in the order in which the rank's jobs are expected to ask for them, at most kDepth
// beyond the last request; reading a piece also begins to send it to the device. The expectation only saves
// time: a piece that was not read yet, or was asked for before, is read by the caller. A piece that waits for
// a job that does not come is dropped after some others. Threads: Take from any thread. The thread begins at
// the first Take and ends with the object. Failure: of the reading, given to the caller.
#ifndef WEFT_WORKER_SHELL_DATA_DATA_PREFETCH_H_
#define WEFT_WORKER_SHELL_DATA_DATA_PREFETCH_H_

#include <compare>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// A micro-batch's inputs or targets.
struct DataPiece {
  int step = 0, microbatch = 0;
  bool targets = false;
  friend auto operator<=>(const DataPiece&, const DataPiece&) = default;
};

class DataPrefetch {
 public:
  static constexpr int kDepth = 2;

  // `read` is called from several threads. `of_step` returns the pieces that the rank's jobs of a step will
  // ask for, in their order; steps from `end` on have none.
  using Read = std::function<absl::StatusOr<Tensor>(const DataPiece&)>;
  using OfStep = std::function<std::vector<DataPiece>(int step)>;
  DataPrefetch(Read read, OfStep of_step, int end);
  ~DataPrefetch();
  DataPrefetch(const DataPrefetch&) = delete;
  DataPrefetch& operator=(const DataPrefetch&) = delete;

  absl::StatusOr<Tensor> Take(const DataPiece& piece);

 private:
  void Run();
  std::optional<DataPiece> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NoteMissed(const DataPiece& piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropStale(int step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Read read_;
  const OfStep of_step_;
  const int end_;

  Mutex mutex_;
  CondVar changed_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  int misses_ ABSL_GUARDED_BY(mutex_) = 0;                    // misses since the last hit
  int next_step_ ABSL_GUARDED_BY(mutex_) = 0;                 // first step whose pieces are not listed yet
  std::deque<DataPiece> expected_ ABSL_GUARDED_BY(mutex_);    // pieces listed, and neither asked for nor read
  std::set<DataPiece> asked_early_ ABSL_GUARDED_BY(mutex_);   // pieces of steps that are not listed yet
  std::optional<DataPiece> reading_ ABSL_GUARDED_BY(mutex_);  // piece that the thread reads
  std::map<DataPiece, absl::StatusOr<Tensor>> ready_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_DATA_PREFETCH_H_
