// Plans a residual network: its convolutions, group by group, with their sizes.
//
// A network is a stem, blocks in four groups, and a head. Each group doubles the channels, and each but the
// first begins with a block of stride 2. A block is two convolutions of 3x3 (depths 18 and 34), or three of
// 1x1, 3x3 and 1x1 of which the last makes four times the channels (depth 50). Its input is added to its
// output, through a convolution of 1x1 where the sizes differ. A batch norm follows every convolution. Both
// the counts (model_layers.h) and the compute adapter use this plan. Pure.
#ifndef WEFT_RUN_RESNET_H_
#define WEFT_RUN_RESNET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run/model_spec.h"

namespace weft {

// A square convolution without bias, padded by half its kernel, and its batch norm.
struct NormedConvolution {
  std::string convolution, norm;  // names within the layer: "conv1" and "norm1"
  int64_t in = 0, out = 0;        // channels
  int64_t kernel = 1, stride = 1;
  int64_t in_side = 0, out_side = 0;  // sides of the images
};

struct ResNetBlock {
  std::vector<NormedConvolution> path;        // convolutions with a ReLU between each two, and behind the sum
  std::optional<NormedConvolution> shortcut;  // none where the sizes are the same
};

struct ResNetPlan {
  NormedConvolution stem;
  bool pools = false;  // the stem ends with a maximum over 3x3 with stride 2, padded by 1
  std::vector<ResNetBlock> blocks;
  int64_t features = 0;                  // channels that the head averages over the image
  int64_t stem_side = 0, last_side = 0;  // sides of the stem's output, and of the last block's
};

ResNetPlan PlanOf(const ResNetSpec& model);

}  // namespace weft

#endif  // WEFT_RUN_RESNET_H_
