// Reads a data set of square images in another size: each pixel is the one of the original that lies over its
// middle. No number is computed, so the result is the same everywhere. Small pictures become large ones at
// hardly any cost, which is enough to train or measure a model of a size that its pictures do not have.
// Threads and failure: as data.h.
#ifndef WEFT_WORKER_SHELL_DATA_RESIZED_IMAGES_H_
#define WEFT_WORKER_SHELL_DATA_RESIZED_IMAGES_H_

#include <memory>

#include "worker/shell/data/data.h"

namespace weft {

// Resizes `images`, which has `channels` of `from` x `from` float32 each, to `to` x `to`. Returns `images`
// itself where the sizes are the same.
std::unique_ptr<Dataset> Resized(std::unique_ptr<Dataset> images, int channels, int from, int to);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_RESIZED_IMAGES_H_
