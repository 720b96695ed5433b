// Changes images each time that they are trained on: takes a part of the image's size from the image with
// zeros around it (crop), and exchanges left and right (flip).
//
// The change depends on the run's seed, the epoch and the sample's number only, so it is the same under every
// schedule and placement and after a resumption. With h of sample_order.h:
//
// key = h(h(h(seed, 2), epoch), number)
// down = h(key, 0) mod (2 * crop + 1), right = h(key, 1) mod (2 * crop + 1)
// cropped[y][x] = image[y + down - crop][x + right - crop], 0 outside of the image
// with flip, if h(key, 2) is odd: result[y][x] = cropped[y][columns - 1 - x]
//
// for each channel alike, after an image has been resized. Pure.
#ifndef WEFT_WORKER_SHELL_DATA_AUGMENT_H_
#define WEFT_WORKER_SHELL_DATA_AUGMENT_H_

#include <cstdint>

#include "run/run_spec.h"
#include "worker/shell/data/sample_order.h"

namespace weft {

struct ImageShape {
  int64_t channels = 0, rows = 0, columns = 0;
  int64_t pixels() const { return channels * rows * columns; }
};

// Changes the image in place.
void Augment(const Augmentation& augment, uint64_t seed, const Sample& sample, const ImageShape& shape,
             float* image);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_AUGMENT_H_
