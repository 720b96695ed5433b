// Measures what the compute adapter adds to LibTorch: a micro-batch's forward and backward through
// RankCompute, against the same layers in a bare loop; and the segment allocator alone.
#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "run/run_schedule.h"
#include "tests/bench/mlp_run.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/segment_allocator.h"
#include "worker/shell/compute/value_hash.h"

namespace weft {
namespace {

constexpr int kMicrobatches = 8;
constexpr int kLayersOfStage = 2;

Device& Cpu() {
  static const std::unique_ptr<Device> device = CreateCpuDevice();
  return *device;
}

Tensor Filled(const TensorShape& shape) {
  const size_t bytes = static_cast<size_t>(shape.size[0] * shape.size[1]) * sizeof(float);
  constexpr size_t kAlign = 64;
  auto* data = static_cast<float*>(std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign));
  for (size_t i = 0; i < bytes / sizeof(float); ++i) data[i] = static_cast<float>(i % 17) / 17;
  return {shape, data, bytes, std::shared_ptr<void>(data, &std::free)};
}

void BM_Adapter(benchmark::State& state) {
  const int width = static_cast<int>(state.range(0)), samples = static_cast<int>(state.range(1));
  PlainMemory memory;
  auto rank = *Cpu().CreateRank(*ScheduledRun::Make(MlpRun(width, kLayersOfStage, samples, kMicrobatches)), 0,
                                memory);
  if (!rank->AddStage(1, StageRole::Whole()).ok()) std::abort();
  const Tensor x = Filled({DataType::kFloat32, 2, {samples, width}}), g = x;
  int step = 0;
  for (auto _ : state) {
    for (int b = 0; b < kMicrobatches; ++b) {
      auto forward = rank->Forward(Job::Compute(step, 1, b, JobKind::kForward), {x}, {}, 0);
      if (!forward.ok()) std::abort();
      auto backward = rank->Backward(Job::Compute(step, 1, b, JobKind::kBackward), {g}, {}, 0, false);
      if (!backward.ok()) std::abort();
    }
    if (!rank->TakeSum(Job::Update(step++, 1, 0), 0, 1).ok()) std::abort();
  }
  state.SetItemsProcessed(state.iterations() * kMicrobatches);
}

void BM_BareLibTorch(benchmark::State& state) {
  const int width = static_cast<int>(state.range(0)), samples = static_cast<int>(state.range(1));
  Cpu();  // the same settings
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < kLayersOfStage; ++i) {
    parameters.push_back(at::rand({width, width}).set_requires_grad(true));
    parameters.push_back(at::rand({width}).set_requires_grad(true));
  }
  const at::Tensor data = at::rand({samples, width}), g = at::rand({samples, width});
  for (auto _ : state) {
    for (int b = 0; b < kMicrobatches; ++b) {
      at::Tensor x = data.detach().set_requires_grad(true);
      at::Tensor y = x;
      for (int i = 0; i < kLayersOfStage; ++i) {
        y = at::gelu(at::linear(y, parameters[2 * i], parameters[2 * i + 1]));
      }
      y.backward(g);
      benchmark::DoNotOptimize(x.grad().data_ptr());
    }
    for (at::Tensor& p : parameters) p.mutable_grad().reset();
  }
  state.SetItemsProcessed(state.iterations() * kMicrobatches);
}

void BM_SegmentAllocator(benchmark::State& state) {
  PlainMemory memory;
  auto allocator = SegmentAllocator::Create(memory);
  const size_t bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) SegmentAllocator::Free(*allocator->Allocate(bytes, MemoryClass::kBuffers));
}

// Allocates as a training does: some tens of tensors of various sizes alive, freed in another order.
void BM_SegmentAllocatorMixed(benchmark::State& state) {
  PlainMemory memory;
  auto allocator = SegmentAllocator::Create(memory);
  constexpr int kLive = 64;
  std::vector<void*> live(kLive);
  uint32_t random = 1;
  auto next = [&] { return random = random * 1664525 + 1013904223; };
  for (void*& p : live) p = *allocator->Allocate(next() >> 14, MemoryClass::kBuffers);
  for (auto _ : state) {
    void*& p = live[next() >> 26];
    SegmentAllocator::Free(p);
    p = *allocator->Allocate(64 << ((next() >> 20) % 13), MemoryClass::kBuffers);
  }
  for (void* p : live) SegmentAllocator::Free(p);
}

// Hashes memory of so many KiB, over and over.
void BM_HashBytes(benchmark::State& state) {
  const std::vector<float> values(static_cast<size_t>(state.range(0)) << 8, 0.5f);
  const size_t bytes = values.size() * sizeof(float);
  for (auto _ : state) benchmark::DoNotOptimize(HashBytes(values.data(), bytes));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}

BENCHMARK(BM_Adapter)->Args({128, 4})->Args({256, 4})->Args({512, 16})->Args({1024, 32})->UseRealTime();
BENCHMARK(BM_BareLibTorch)->Args({128, 4})->Args({256, 4})->Args({512, 16})->Args({1024, 32})->UseRealTime();
BENCHMARK(BM_SegmentAllocator)->Arg(64)->Arg(4096)->Arg(1 << 20);
BENCHMARK(BM_SegmentAllocatorMixed);
BENCHMARK(BM_HashBytes)->Arg(512)->Arg(65536);

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
