#include "worker/shell/memory/keep_forever.h"

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace weft {
namespace {

struct Kept {
  Mutex mutex;
  std::vector<std::shared_ptr<void>> all ABSL_GUARDED_BY(mutex);
};

}  // namespace

void KeepForever(std::shared_ptr<void> what) {
  static Kept* const kept = new Kept;
  MutexLock lock(kept->mutex);
  kept->all.push_back(std::move(what));
}

}  // namespace weft
