#include "worker/shell/torch/pass_table.h"

namespace weft {

Pass* PassTable::Find(const Job& job) {
  MutexLock lock(mutex_);
  const auto found = passes_.find({job.step, job.microbatch});
  return found == passes_.end() ? nullptr : found->second.get();
}

void PassTable::Insert(const Job& job, Pass pass) {
  auto kept = std::make_unique<Pass>(std::move(pass));
  MutexLock lock(mutex_);
  passes_.emplace(std::pair(job.step, job.microbatch), std::move(kept));
}

void PassTable::Erase(const Job& job) {
  std::unique_ptr<Pass> ended;  // after the lock: it may hold a graph
  MutexLock lock(mutex_);
  const auto found = passes_.find({job.step, job.microbatch});
  ended = std::move(found->second);
  passes_.erase(found);
}

}  // namespace weft
