#include "worker/shell/torch/pass_numbers.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "worker/shell/compute/parameters.h"
#include "worker/shell/torch/dropout.h"

namespace weft {
namespace {

// Returns a number of the room whose first four bytes, where a view as float32 reads, are `value`.
uint64_t NumberOf(float value) {
  uint64_t number = 0;
  std::memcpy(&number, &value, sizeof(value));
  return number;
}

}  // namespace

// The numbers begin as zero, since captured work may be done once before there are any.
PassNumbers::PassNumbers(const FlatMath& math, c10::Device device, int sites)
    : math_(math), room_(at::empty({1 + sites}, c10::TensorOptions().dtype(c10::kLong).device(device))) {
  math_.Zero(room_.mutable_data_ptr(), room_.nbytes());
}

const uint64_t* PassNumbers::SeedOf(int layer, int site) {
  const std::pair<int, int> place(layer, site);
  const auto found = std::find(sites_.begin(), sites_.end(), place);
  const int64_t number = 1 + (found - sites_.begin());
  TORCH_CHECK(number < room_.numel(), "layer ", layer, " has no room for the seed of its site ", site,
              " of dropout");
  if (found == sites_.end()) sites_.push_back(place);
  return static_cast<const uint64_t*>(room_.const_data_ptr()) + number;
}

at::Tensor PassNumbers::LossDivisor() {
  divides_ = true;
  return room_.narrow(0, 0, 1).view(c10::kFloat).select(0, 0);
}

void PassNumbers::Write(const MaskKey& key) const {
  if (!divides_ && sites_.empty()) return;
  std::vector<uint64_t> numbers = {NumberOf(key.loss_divisor)};
  for (const auto& [layer, site] : sites_)
    numbers.push_back(MaskSeed(key.seed, key.step, key.microbatch, layer, site));
  math_.WriteNumbers(static_cast<uint64_t*>(room_.mutable_data_ptr()), numbers.data(),
                     static_cast<int64_t>(numbers.size()));
}

}  // namespace weft
