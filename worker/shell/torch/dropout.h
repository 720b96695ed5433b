// Implements dropout as one operation of LibTorch's graph: x times a mask of 0 and 1/(1-p), of which nothing
// is kept.
//
// Masks come from a counter-based generator (DropoutMask in elementwise.h), so that an element's fate depends
// on the seed of its site and on its number only, on every device, and the backward makes the mask again. The
// arithmetic is the device's (FlatMath::Drop), one pass over memory each way; bits are those of x * mask.
//
// Captured work reads its seeds from the device's memory (pass_numbers.h).
//
// Private to the adapter of LibTorch. Threads: as of the pass. A graph holds the addresses of `math` and
// `numbers`, which outlive it.
#ifndef WEFT_WORKER_SHELL_TORCH_DROPOUT_H_
#define WEFT_WORKER_SHELL_TORCH_DROPOUT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/shell/compute/flat_math.h"

namespace weft {

class Mutex;
class PassNumbers;

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
  // Numbers of a pass that is captured, in place of seed, step, microbatch and loss_divisor; else null.
  PassNumbers* numbers = nullptr;
  // Number by which the model's loss is divided, where that is a sum (loss_counts.h).
  float loss_divisor = 1;
  // Lock of LibTorch's generator of the device (RankDevice::generator_lock); null for the host's.
  Mutex* generator = nullptr;
};

// Drops at `site` of the layer: returns x itself where p is 0 or nothing is trained. Requires 0 <= p < 1.
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
