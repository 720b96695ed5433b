// Dropout as one operation of LibTorch's graph: x times a mask of 0 and 1/(1-p), of which nothing is kept.
//
// Masks come from a counter-based generator (DropoutMask in elementwise.h), so that an element's fate depends
// on the seed of its site and on its number only, on every device, and the backward makes the mask again.
// The arithmetic is the device's (FlatMath::Drop), one pass over memory each way; bits are those of
// x * mask.
//
// A pass that is captured and replayed for other micro-batches cannot have its seeds in what was captured:
// they lie in the device's memory (MaskSeeds) and are written there before each replay.
//
// Private to the adapter of LibTorch. Threads: as of the pass. A graph holds the addresses of `math` and
// `seeds`, which outlive it.
#ifndef WEFT_WORKER_SHELL_COMPUTE_DROPOUT_H_
#define WEFT_WORKER_SHELL_COMPUTE_DROPOUT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/shell/compute/flat_math.h"

namespace weft {

class MaskSeeds;

// One pass of one micro-batch, with the arithmetic that drops in it and the seeds' room in device memory.
struct MaskKey {
  uint64_t seed = 0;
  int step = 0;
  int microbatch = 0;
  // False to evaluate: nothing is dropped, and batch norms use the running averages.
  bool training = true;
  // Of the device on which the pass runs. May be null where nothing is dropped.
  const FlatMath* math = nullptr;
  // Of a pass that is captured, in place of seed, step and microbatch; else null.
  MaskSeeds* seeds = nullptr;
};

// Seeds in the device's memory, one for each site of dropout of a stage.
class MaskSeeds {
 public:
  // Sites of dropout that a layer has at most.
  static constexpr int kSitesOfLayer = 2;

  // For layers [first_layer, end_layer). Throws c10::OutOfMemoryError.
  MaskSeeds(const FlatMath& math, c10::Device device, int first_layer, int end_layer);

  // Where the seed of a site is.
  const uint64_t* Of(int layer, int site);
  // Those of a pass, behind what the calling thread enqueued before. Nothing where no site was asked for.
  void Write(const MaskKey& key) const;

 private:
  const FlatMath& math_;
  const int first_layer_;
  const at::Tensor room_;
  int used_ = 0;  // of the room, from its begin
};

// Drops at `site`, below MaskSeeds::kSitesOfLayer, of the layer: gives x itself where p is 0 or nothing
// is trained. Requires 0 <= p < 1.
at::Tensor Dropout(const at::Tensor& x, double p, const MaskKey& key, int layer, int site);

// The operation: x, float32 or bfloat16, times the mask of this seed, which is read at `at`, of the device's
// memory, when the work is done, or is `value` where that is null. Contiguous.
struct DropoutSeed {
  uint64_t value = 0;
  const uint64_t* at = nullptr;
};
at::Tensor Drop(const FlatMath& math, const at::Tensor& x, double p, DropoutSeed seed);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_DROPOUT_H_
