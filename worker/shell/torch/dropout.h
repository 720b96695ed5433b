// Implements dropout as one operation of LibTorch's graph: x times a mask of 0 and 1/(1-p), of which nothing
// is kept.
//
// Masks come from a counter-based generator (DropoutMask in elementwise.h), so that an element's fate depends
// on the seed of its site and on its number only, on every device, and the backward makes the mask again. The
// arithmetic is the device's (FlatMath::Drop), one pass over memory each way; bits are those of x * mask.
//
// A pass that is captured and replayed for other micro-batches cannot have its seeds in the captured work:
// they lie in the device's memory (MaskSeeds) and are written there before each replay.
//
// Private to the adapter of LibTorch. Threads: as of the pass. A graph holds the addresses of `math` and
// `seeds`, which outlive it.
#ifndef WEFT_WORKER_SHELL_TORCH_DROPOUT_H_
#define WEFT_WORKER_SHELL_TORCH_DROPOUT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/shell/compute/flat_math.h"

namespace weft {

class MaskSeeds;

// One pass of one micro-batch, with the arithmetic that drops in it and the memory of the seeds on the
// device.
struct MaskKey {
  uint64_t seed = 0;
  int step = 0;
  int microbatch = 0;
  // False to evaluate: nothing is dropped, and batch norms use the running averages.
  bool training = true;
  // The arithmetic of the pass's device. May be null where nothing is dropped.
  const FlatMath* math = nullptr;
  // Seeds of a pass that is captured, in place of seed, step and microbatch; else null.
  MaskSeeds* seeds = nullptr;
  // Number by which the model's loss is divided, where that is a sum (loss_counts.h).
  float loss_divisor = 1;
};

// The seeds in the device's memory, one for each site of dropout of a stage.
class MaskSeeds {
 public:
  // The most sites of dropout of a layer.
  static constexpr int kSitesOfLayer = 2;

  // Makes seeds for layers [first_layer, end_layer). Throws c10::OutOfMemoryError.
  MaskSeeds(const FlatMath& math, c10::Device device, int first_layer, int end_layer);

  // Returns the place of the seed of a site.
  const uint64_t* Of(int layer, int site);
  // Writes the seeds of a pass, behind the work that the calling thread enqueued before. Does nothing if no
  // site was asked for.
  void Write(const MaskKey& key) const;

 private:
  const FlatMath& math_;
  const int first_layer_;
  const at::Tensor room_;
  int used_ = 0;  // used part of the room, from its begin
};

// Drops at `site`, below MaskSeeds::kSitesOfLayer, of the layer: returns x itself where p is 0 or nothing is
// trained. Requires 0 <= p < 1.
at::Tensor Dropout(const at::Tensor& x, double p, const MaskKey& key, int layer, int site);

// Multiplies x, float32 or bfloat16, by the mask of this seed. The seed is read at `at`, of the device's
// memory, when the work is done, or is `value` where that is null. The result is contiguous.
struct DropoutSeed {
  uint64_t value = 0;
  const uint64_t* at = nullptr;
};
at::Tensor Drop(const FlatMath& math, const at::Tensor& x, double p, DropoutSeed seed);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_DROPOUT_H_
