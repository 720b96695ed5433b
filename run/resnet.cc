#include "run/resnet.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Returns the side of the output of a convolution or pooling of stride 2, whichever of the kernels here it
// has.
int64_t Halved(int64_t side) { return (side + 1) / 2; }

NormedConvolution Convolution(int number, int64_t in, int64_t out, int64_t kernel, int64_t stride,
                              int64_t side) {
  return {absl::StrCat("conv", number),     absl::StrCat("norm", number), in, out, kernel, stride, side,
          stride == 2 ? Halved(side) : side};
}

ResNetBlock Block(bool bottleneck, int64_t in, int64_t width, int64_t stride, int64_t side) {
  ResNetBlock block;
  const int64_t out = bottleneck ? 4 * width : width;
  if (bottleneck) {
    block.path.push_back(Convolution(1, in, width, 1, 1, side));
    block.path.push_back(Convolution(2, width, width, 3, stride, side));
    block.path.push_back(Convolution(3, width, out, 1, 1, block.path.back().out_side));
  } else {
    block.path.push_back(Convolution(1, in, width, 3, stride, side));
    block.path.push_back(Convolution(2, width, width, 3, 1, block.path.back().out_side));
  }
  if (stride != 1 || in != out) {
    block.shortcut = Convolution(0, in, out, 1, stride, side);
    block.shortcut->convolution = "shortcut.conv";
    block.shortcut->norm = "shortcut.norm";
  }
  return block;
}

}  // namespace

ResNetPlan PlanOf(const ResNetSpec& model) {
  const bool imagenet = model.stem == ResNetSpec::Stem::kImageNet;
  const bool bottleneck = model.depth == 50;
  const std::array<int, 4> groups =
      model.depth == 18 ? std::array<int, 4>{2, 2, 2, 2} : std::array<int, 4>{3, 4, 6, 3};
  ResNetPlan plan;
  plan.stem = Convolution(1, model.channels, model.width, imagenet ? 7 : 3, imagenet ? 2 : 1, model.size);
  plan.pools = imagenet;
  plan.stem_side = imagenet ? Halved(plan.stem.out_side) : plan.stem.out_side;
  int64_t channels = model.width, width = model.width, side = plan.stem_side;
  for (size_t group = 0; group < groups.size(); ++group, width *= 2) {
    for (int i = 0; i < groups[group]; ++i) {
      ResNetBlock block = Block(bottleneck, channels, width, group > 0 && i == 0 ? 2 : 1, side);
      channels = block.path.back().out;
      side = block.path.back().out_side;
      plan.blocks.push_back(std::move(block));
    }
  }
  plan.features = channels;
  plan.last_side = side;
  return plan;
}

}  // namespace weft
