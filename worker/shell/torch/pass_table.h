// Keeps the passes of one stage that wait for their backward, by step and micro-batch.
//
// A pass enters when its forward has ended, or when it comes from another rank, and leaves when its gradients
// have been made. A step and micro-batch are in here at most once. A found pass belongs to the job that found
// it, without the lock: no second job of the same micro-batch runs beside it. Private to the adapter of
// LibTorch. Thread-safe: a forward of one micro-batch enters while the backward of another leaves.
#ifndef WEFT_WORKER_SHELL_TORCH_PASS_TABLE_H_
#define WEFT_WORKER_SHELL_TORCH_PASS_TABLE_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "schedules/job.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {

class PassTable {
 public:
  // Returns the pass of the job's micro-batch, which stays until Erase; null if there is none.
  Pass* Find(const Job& job);
  // Inserts a pass that Find has not found.
  void Insert(const Job& job, Pass pass);
  // Removes a pass that Find has found.
  void Erase(const Job& job);

 private:
  Mutex mutex_;
  absl::flat_hash_map<std::pair<int, int>, std::unique_ptr<Pass>> passes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_PASS_TABLE_H_
