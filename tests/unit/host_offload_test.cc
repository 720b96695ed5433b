// Tests that saved tensors come back from host memory as they were when the forward saved them.
#include "worker/shell/torch/host_offload.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <tuple>
#include <vector>

#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/cpu_rank_device.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft::host_offload_test {
namespace {

class HostOffloadTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    PrepareProcess();
    InstallOffloadEngine();
  }

  // Returns a leaf of a graph.
  static at::Tensor Leaf(at::IntArrayRef size) { return at::randn(size).set_requires_grad(true); }

  // Returns the gradients of `leaves` by the sum of what `forward` returns, whose saved tensors go to the
  // host if `offloads`. `sent` counts the bytes on the host behind the forward.
  template <typename Forward>
  std::vector<at::Tensor> Gradients(Forward forward, const std::vector<at::Tensor>& leaves, bool offloads,
                                    int64_t* sent = nullptr) {
    at::Tensor sum;
    OffloadedTensors offloaded;
    {
      std::optional<HostOffload> scope;
      if (offloads) scope.emplace(device_, HostOffload::Storages{}, &offloaded);
      sum = forward().sum();
    }
    if (sent != nullptr) {
      *sent = 0;
      for (const int64_t bytes : device_.live_bytes()) *sent += bytes;
    }
    return torch::autograd::grad({sum}, leaves);
  }

  PlainMemory memory_;
  CpuRankDevice device_{memory_};
};

TEST_F(HostOffloadTest, LstmWhoseGatesShareAStorage_GradientsAreTheSame) {
  const int64_t in = 3, width = 4;
  const at::Tensor x = Leaf({5, 2, in});
  std::vector<at::Tensor> weights;
  const std::vector<std::vector<int64_t>> sizes = {
      {4 * width, in}, {4 * width, width}, {4 * width}, {4 * width}};
  for (const std::vector<int64_t>& size : sizes) weights.push_back(Leaf(size));
  const std::vector<at::Tensor> state = {at::zeros({1, 2, width}), at::zeros({1, 2, width})};
  const auto forward = [&] {
    return std::get<0>(at::lstm(x, state, weights, /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0,
                                /*train=*/true, /*bidirectional=*/false, /*batch_first=*/false));
  };
  std::vector<at::Tensor> leaves = weights;
  leaves.push_back(x);
  const std::vector<at::Tensor> kept = Gradients(forward, leaves, false);
  const std::vector<at::Tensor> away = Gradients(forward, leaves, true);
  ASSERT_EQ(kept.size(), away.size());
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], away[i])) << "gradient " << i;
}

TEST_F(HostOffloadTest, PartsOfOneTensor_ShareOneCopy) {
  const at::Tensor x = Leaf({8, 64});
  const auto forward = [&] {
    const std::vector<at::Tensor> parts = (x * 2).split(32, 1);
    return parts[0] * parts[1];
  };
  int64_t sent = 0;
  Gradients(forward, {x}, true, &sent);
  EXPECT_LE(sent, 8 * 64 * int64_t{sizeof(float)} + 64);
}

}  // namespace
}  // namespace weft::host_offload_test
