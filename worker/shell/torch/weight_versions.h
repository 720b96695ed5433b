// Holds the versions of one stage's weights on a rank: the newest, which updates make, and older ones that
// jobs still read.
//
// worker/core decides which ones are kept. A job that computes with a version, or a peer that takes it, keeps
// its memory by StageWeights::Use, also after it was dropped here. So an update may write over the newest
// version only if nobody needs it as a version and nobody uses its memory. Private to the adapter of
// LibTorch. Thread-safe: versions are dropped while jobs read others.
#ifndef WEFT_WORKER_SHELL_TORCH_WEIGHT_VERSIONS_H_
#define WEFT_WORKER_SHELL_TORCH_WEIGHT_VERSIONS_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {

class WeightVersions {
 public:
  using Weights = std::shared_ptr<StageWeights>;

  // Sets the oldest version that the run begins with. Call once, before any other method, or after Release.
  void Begin(int version, Weights initial);
  // Install takes the versions of a migrated state, ascending, where none are held; Release gives the held
  // ones up.
  using Numbered = std::vector<std::pair<int, Weights>>;
  void Install(Numbered versions);
  Numbered Release();
  bool held() const { return held_; }

  // Returns the version; null if the rank does not hold it.
  Weights At(int version) const;
  Weights newest() const;
  int newest_version() const;
  // Adds the version after the newest, which stays beside it if `keep`. Without `keep` it may be the newest's
  // own weights, written over.
  void Add(Weights next, bool keep);
  // Drops a version and returns it; null if it is not here, or is the newest.
  Weights Drop(int version);

 private:
  bool held_ = false;  // set before the rank has jobs; where the state migrates, by the rank's jobs
  mutable Mutex mutex_;
  Numbered versions_ ABSL_GUARDED_BY(mutex_);  // ascending
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_WEIGHT_VERSIONS_H_
