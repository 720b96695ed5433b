// Describes a max pooling, for PassMath and for nvcc's code: a plain type, C++17.
#ifndef WEFT_WORKER_SHELL_COMPUTE_MAX_POOLING_H_
#define WEFT_WORKER_SHELL_COMPUTE_MAX_POOLING_H_

#include <cstdint>

namespace weft {

// A max pooling of images [samples, channels, rows, columns], and where a pixel's channels lie: one after the
// other, or each in a plane of its own. It is so for the images and for what was pooled of them.
struct MaxPooling {
  int64_t samples = 0, channels = 0, rows = 0, columns = 0, out_rows = 0, out_columns = 0;
  int window = 0, stride = 0, padding = 0;
  bool channels_last = false;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_MAX_POOLING_H_
