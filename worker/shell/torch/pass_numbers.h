// Keeps in a device's memory the numbers of a pass that change from one micro-batch to the next: the seeds of
// dropout's masks, and the number by which a sum of losses is divided.
//
// A pass that is captured and replayed for other micro-batches cannot have these numbers in the captured
// work: the work reads them here, and they are written before each replay.
//
// Private to the adapter of LibTorch. Threads: as of the pass. Ownership: a captured graph holds addresses in
// here; `math` outlives it.
#ifndef WEFT_WORKER_SHELL_TORCH_PASS_NUMBERS_H_
#define WEFT_WORKER_SHELL_TORCH_PASS_NUMBERS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/shell/compute/flat_math.h"

namespace weft {

struct MaskKey;

class PassNumbers {
 public:
  // Makes room for the seeds of `sites` sites of dropout: at least as many as there are pairs of a layer and
  // a site that SeedOf will be asked for, the sum of Layer::dropout_sites over the pass's layers. Throws
  // c10::OutOfMemoryError.
  PassNumbers(const FlatMath& math, c10::Device device, int sites);

  // Returns the place of a site's seed, the same one each time. Throws c10::Error if there is no room.
  const uint64_t* SeedOf(int layer, int site);
  // Returns the number by which the model's loss is divided, a float32 scalar.
  at::Tensor LossDivisor();
  // Writes the numbers of a pass, behind the work that the calling thread enqueued before. Does nothing if
  // none was asked for.
  void Write(const MaskKey& key) const;

 private:
  const FlatMath& math_;
  const at::Tensor room_;                   // the divisor, and the seeds in the order of sites_
  bool divides_ = false;                    // true if the divisor was asked for
  std::vector<std::pair<int, int>> sites_;  // that were asked for: layer, and number in the layer
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_PASS_NUMBERS_H_
