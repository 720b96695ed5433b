// One site of dropout, forward and backward: weft's operation against the product with a mask that
// LibTorch's graph keeps, in turns on one thread, the least CPU time of many rounds. Prints a table in
// Markdown.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>

#include "worker/shell/compute/host_math.h"
#include "worker/shell/torch/dropout.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {
namespace {

constexpr double kP = 0.1;

// The generator without a processor's vectors, as masks were made when they were kept.
at::Tensor KeptMask(at::IntArrayRef sizes, uint64_t seed) {
  at::Tensor mask = at::empty(sizes, c10::kFloat);
  float* const to = mask.mutable_data_ptr<float>();
  const auto threshold = static_cast<uint32_t>(kP * 4294967296.0);
  const auto keep = static_cast<float>(1 / (1 - kP));
  const int64_t n = mask.numel();
  for (int64_t i = 0; i < n; ++i) {
    uint64_t z = seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    to[i] = static_cast<uint32_t>((z ^ (z >> 31)) >> 32) < threshold ? 0.0f : keep;
  }
  return mask;
}

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Timed(const std::function<at::Tensor()>& drop, const at::Tensor& x, const at::Tensor& gradient) {
  const double start = CpuSeconds();
  const at::Tensor y = drop();
  const auto made = torch::autograd::grad({y}, {x}, {gradient});
  return CpuSeconds() - start;
}

void Compare(at::IntArrayRef sizes, c10::ScalarType type, const char* name) {
  const at::Tensor x = at::randn(sizes, c10::kFloat).to(type).requires_grad_();
  const at::Tensor gradient = at::randn(sizes, c10::kFloat).to(type);
  double kept = 1e9, own = 1e9;
  for (int round = 0; round < 300; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    kept = std::min(kept, Timed([&] { return x * KeptMask(sizes, seed).to(type); }, x, gradient));
    own = std::min(own, Timed([&] { return Drop(HostMath(), x, kP, {seed}); }, x, gradient));
  }
  std::printf("| %s, %s | %.1f µs | %.1f µs | %.2f |\n", name, type == c10::kFloat ? "float32" : "bfloat16",
              kept * 1e6, own * 1e6, own / kept);
}

}  // namespace
}  // namespace weft

int main() {
  weft::PrepareProcess();
  weft::PrepareThread();
  std::printf(
      "| numbers | product with a mask that is kept | weft's operation | ratio |\n| --- | --- | --- | --- "
      "|\n");
  for (const auto type : {c10::kFloat, c10::kBFloat16}) {
    weft::Compare({4, 64, 128}, type, "4 x 64 x 128");
    weft::Compare({4, 128, 256}, type, "4 x 128 x 256");
    weft::Compare({8, 256, 768}, type, "8 x 256 x 768");
  }
  return 0;
}
