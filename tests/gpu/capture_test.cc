// Captures of CUDA graphs, and what other threads do beside them, over a GPU of the tests that is as strict
// about captures as CUDA; LibTorch's graphs, allocator and autograd are real, kernels do nothing.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/gpu/beside_a_capture.h"
#include "tests/gpu/fake_gpu.h"
#include "tests/gpu/the_gpu.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/batch_norm.h"
#include "worker/shell/torch/cross_entropy.h"
#include "worker/shell/torch/host_offload.h"
#include "worker/shell/torch/max_pool.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_context.h"
#include "worker/shell/torch/torch_layers.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft::capture_test {
namespace {

using testing::FakeGpu;
using ::testing::HasSubstr;

constexpr int64_t kFloats = 64;

Job Forward(int stage, int microbatch) { return Job::Compute(0, stage, microbatch, JobKind::kForward); }
Job Backward(int stage, int microbatch) { return Job::Compute(0, stage, microbatch, JobKind::kBackward); }

class CudaCaptureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = NewRankOfTheGpu(0);
    other_ = NewRankOfTheGpu(1);
  }
  void TearDown() override {
    device_.reset();
    other_.reset();
    FakeGpu::Run();
  }

  static Tensor Flat(RankDevice& device, int64_t n = kFloats) {
    absl::StatusOr<Tensor> made = device.NewFlat(n, MemoryClass::kActivations, DataType::kFloat32);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }
  static Tensor Filled(RankDevice& device, float value) {
    const Tensor made = Flat(device);
    const std::vector<float> values(kFloats, value);
    EXPECT_TRUE(device.Load(made.data, values.data(), made.bytes).ok());
    return made;
  }
  static std::vector<float> Read(RankDevice& device, const Tensor& tensor) {
    std::vector<float> values(tensor.bytes / sizeof(float));
    EXPECT_TRUE(device.ReadBack(values.data(), tensor.data, tensor.bytes).ok());
    return values;
  }
  static std::vector<float> All(float value) { return std::vector<float>(kFloats, value); }
  // Outside of jobs, from memory that may go at once.
  static Tensor Sent(RankDevice& device, float value) {
    std::vector<float> values(kFloats, value);
    const Tensor plain{
        {DataType::kFloat32, 1, {kFloats}}, values.data(), kFloats * 4, std::make_shared<int>(0)};
    absl::StatusOr<Tensor> sent = device.ToDevice(plain, MemoryClass::kActivations);
    EXPECT_TRUE(sent.ok()) << sent.status();
    return *sent;
  }
  absl::StatusOr<std::unique_ptr<CapturedWork>> Capture(const std::function<absl::Status()>& work) {
    return device_->Capture(work, nullptr);
  }

  // Ends the job that has begun, and expects that the GPU gets to its end.
  void ExpectJobEnds() {
    const std::shared_ptr<LaunchedJob> job = device_->EndJob();
    FakeGpu::Run();
    const absl::StatusOr<bool> reached = job->Reached();
    EXPECT_TRUE(reached.ok() && *reached) << reached.status();
  }

  std::unique_ptr<RankDevice> device_, other_;
};

TEST_F(CudaCaptureTest, CapturedWork_IsDoneWhenItIsReplayed) {
  const Tensor a = Filled(*device_, 3), b = Filled(*device_, 0);
  device_->BeginJob(Forward(0, 0), false);
  const auto work = Capture([&] {
    device_->math().Copy(b.data, a.data, a.bytes);
    return absl::OkStatus();
  });
  ASSERT_TRUE(work.ok()) << work.status();
  ASSERT_NE(*work, nullptr);
  FakeGpu::Run();
  EXPECT_EQ(Read(*device_, b), All(0));
  (*work)->Replay();
  const auto job = device_->EndJob();
  FakeGpu::Run();
  EXPECT_TRUE(*job->Reached());
  EXPECT_EQ(Read(*device_, b), All(3));
}

// LibTorch's allocator forgets the uses on other streams that it is told of during a capture.
TEST_F(CudaCaptureTest, TensorAwaitedWhileAnotherRankCaptures_IsNotGivenOutUnderItsReader) {
  const Tensor out = Flat(*other_);
  const void* used = nullptr;
  std::shared_ptr<LaunchedJob> reader;
  device_->BeginJob(Forward(0, 0), false);
  const auto work = Capture([&] {
    std::thread([&] {
      Tensor sent = Sent(*other_, 1);
      used = sent.data;
      other_->BeginJob(Forward(0, 0), false);
      sent = other_->Await(sent);
      other_->math().Copy(out.data, sent.data, sent.bytes);
      sent = {};
      reader = other_->EndJob();
    }).join();
    device_->math().Zero(Flat(*device_).data, 4);
    return absl::OkStatus();
  });
  ASSERT_TRUE(work.ok()) << work.status();
  (void)device_->EndJob();
  // The device has done nothing yet.
  const Tensor next = Sent(*other_, 2);
  EXPECT_NE(next.data, used);
  FakeGpu::Run();
  ASSERT_TRUE(*reader->Reached());
  EXPECT_EQ(Read(*other_, out), All(1));
}

TEST_F(CudaCaptureTest, CopyToTheHostBesideACapture_LeavesItsLaneAlone) {
  const Tensor a = Filled(*device_, 5), b = Filled(*device_, 0);
  absl::StatusOr<Tensor> host;
  device_->BeginJob(Forward(0, 0), false);
  const auto work = Capture([&] {
    device_->math().Copy(b.data, a.data, a.bytes);
    std::thread([&] { host = device_->ToHost(a, HostUse::kTransfer); }).join();
    return absl::OkStatus();
  });
  ASSERT_TRUE(work.ok()) << work.status();
  (void)device_->EndJob();
  ASSERT_TRUE(host.ok()) << host.status();
  FakeGpu::Run();
  ASSERT_TRUE(*host->ready->Reached());
  EXPECT_EQ(static_cast<const float*>(host->data)[0], 5);
}

TEST_F(CudaCaptureTest, CopyToTheHostBehindAJob_OfWhatWasMadeBeforeIt_ComesBehindThat) {
  const Tensor made = Filled(*device_, 0);
  for (int i = 1; i <= 20; ++i) {
    const Tensor from = Filled(*device_, static_cast<float>(i));
    device_->math().Copy(made.data, from.data, from.bytes);
    device_->BeginJob(Forward(0, i), false);
    (void)device_->EndJob();
    const absl::StatusOr<Tensor> host = device_->ToHost(made, HostUse::kTransfer);
    ASSERT_TRUE(host.ok()) << host.status();
    FakeGpu::Run();
    EXPECT_EQ(static_cast<const float*>(host->data)[0], i);
  }
}

// The block waits until then for the end of all captures.
bool IsFreedBehindOtherStreams() {
  const c10::cuda::CUDAStream used_on = c10::cuda::getStreamFromPool(false, 0);
  c10::Allocator* const allocator = c10::GetAllocator(c10::kCUDA);
  constexpr size_t kBytes = size_t{32} << 20;
  c10::DataPtr block = allocator->allocate(kBytes);
  const void* const address = block.get();
  c10::cuda::CUDACachingAllocator::recordStream(block, used_on);
  block.clear();
  FakeGpu::Run();
  return allocator->allocate(kBytes).get() == address;
}

TEST_F(CudaCaptureTest, WorkThatMayNotBeCaptured_FailsAndTheJobGoesOnWithoutATrace) {
  ASSERT_TRUE(IsFreedBehindOtherStreams());
  const Tensor a = Filled(*device_, 3), b = Filled(*device_, 0);
  device_->BeginJob(Forward(0, 0), false);
  const auto failed = Capture([&] {
    device_->math().Copy(b.data, a.data, a.bytes);
    (void)cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream().stream());
    return absl::OkStatus();
  });
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("capturing a CUDA graph"));
  device_->math().Copy(b.data, a.data, a.bytes);
  EXPECT_TRUE(Capture([&] {
                device_->math().Copy(a.data, b.data, a.bytes);
                return absl::OkStatus();
              }).ok());
  ExpectJobEnds();
  EXPECT_EQ(Read(*device_, b), All(3));
  EXPECT_TRUE(IsFreedBehindOtherStreams());
}

// LibTorch's generator stays as in a capture that nobody ended well.
TEST_F(CudaCaptureTest, FailedCapture_LeavesTheGeneratorThatOtherWorkUses) {
  const Tensor a = Filled(*device_, 3), b = Filled(*device_, 0);
  device_->BeginJob(Forward(0, 0), false);
  const auto before = Capture([&] {
    device_->math().Copy(b.data, a.data, a.bytes);
    return absl::OkStatus();
  });
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_FALSE(Capture([] { return absl::InternalError("not this"); }).ok());
  EXPECT_FALSE(Capture([] {
                 (void)cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream().stream());
                 return absl::OkStatus();
               }).ok());
  const auto floats = at::TensorOptions().device(device_->torch_device()).dtype(at::kFloat);
  EXPECT_NO_THROW(at::randn({kFloats}, floats));
  (*before)->Replay();
  ExpectJobEnds();
  EXPECT_EQ(Read(*device_, b), All(3));
}

TEST_F(CudaCaptureTest, NoMemoryInACapture_IsSaidAndWhatIsUnusedIsGivenBack) {
  constexpr int64_t kMany = int64_t{8} << 20;  // floats
  c10::cuda::CUDACachingAllocator::emptyCache();
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  { const Tensor cached = Flat(*device_, kMany); }
  FakeGpu::SetMemory(total - free + (size_t{48} << 20));
  const auto make = [&] {
    const auto floats = at::TensorOptions().device(device_->torch_device()).dtype(at::kFloat);
    const at::Tensor many = at::empty({kMany}, floats);
    device_->math().Zero(many.data_ptr(), many.nbytes());
    return absl::OkStatus();
  };
  device_->BeginJob(Forward(0, 0), false);
  {
    const auto scope = device_->Charge(MemoryClass::kActivations, Tallied::kNo);
    const auto none = Capture(make);
    EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted) << none.status();
    EXPECT_THAT(std::string(none.status().message()), HasSubstr("bytes for activations of rank 0"));
    device_->ReleaseUnused();
    EXPECT_TRUE(Capture(make).ok());
  }
  (void)device_->EndJob();
  FakeGpu::SetMemory(total);
}

// LibTorch's allocator keeps its unused memory as long as any thread captures.
TEST_F(CudaCaptureTest, NoMemoryWhileAnotherRankCaptures_IsGivenBackBehindTheCapture) {
  constexpr int64_t kMany = int64_t{8} << 20;  // floats
  c10::cuda::CUDACachingAllocator::emptyCache();
  const Tensor a = Flat(*device_);
  { const Tensor cached = Flat(*other_, kMany); }
  size_t free = 0, total = 0, later = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  BesideACapture(*device_, a, [&] { other_->ReleaseUnused(); });
  ASSERT_EQ(cudaMemGetInfo(&later, &total), cudaSuccess);
  EXPECT_GE(later, free + kMany * sizeof(float));
}

// A graph of an exported model may have one: no name of an operation tells that its index is a mask.
TEST_F(CudaCaptureTest, MaskAsIndexInACapture_FailsAndTheJobGoesOn) {
  const auto on_device = at::TensorOptions().device(device_->torch_device());
  const Tensor a = Flat(*device_);
  device_->BeginJob(Forward(0, 0), false);
  {
    const auto scope = device_->Charge(MemoryClass::kActivations, Tallied::kNo);
    const at::Tensor x = at::zeros({kFloats}, on_device.dtype(at::kFloat));
    const at::Tensor mask = at::zeros({kFloats}, on_device.dtype(at::kBool));
    const auto failed = Capture([&] {
      (void)at::index(x, {mask});
      return absl::OkStatus();
    });
    EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal) << failed.status();
  }
  EXPECT_TRUE(Capture([&] {
                device_->math().Zero(a.data, a.bytes);
                return absl::OkStatus();
              }).ok());
  ExpectJobEnds();
}

TEST_F(CudaCaptureTest, NoMemoryForAFlatTensor_TakesWhatAnotherStreamIsDoneWith) {
  constexpr int64_t kMany = int64_t{8} << 20;  // floats
  c10::cuda::CUDACachingAllocator::emptyCache();
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  device_->BeginJob(Forward(0, 0), false);
  {
    const Tensor sent = Flat(*device_, kMany);
    ASSERT_TRUE(device_->ToHost(sent, HostUse::kTransfer).ok());
  }
  FakeGpu::SetMemory(total - free + (size_t{48} << 20));
  const absl::StatusOr<Tensor> next = device_->NewFlat(kMany, MemoryClass::kActivations, DataType::kFloat32);
  EXPECT_TRUE(next.ok()) << next.status();
  FakeGpu::SetMemory(total);
  (void)device_->EndJob();
}

TEST_F(CudaCaptureTest, WhatADeviceUsedThatHasFailed_IsFreedWithoutEndingTheProcess) {
  Tensor sent = Sent(*device_, 1);
  device_->BeginJob(Forward(0, 0), false);
  sent = device_->Await(sent);
  FakeGpu::Break(cudaErrorIllegalAddress);
  sent = {};
  const std::shared_ptr<LaunchedJob> job = device_->EndJob();
  EXPECT_FALSE(job->Reached().ok());
  device_.reset();
  // A next run on the process is told what to do.
  PlainMemory memory;
  const absl::Status next = TheGpu().CreateRankDevice(0, memory).status();
  EXPECT_THAT(std::string(next.message()), HasSubstr("start the worker again"));
  EXPECT_THAT(std::string(next.message()), HasSubstr("cudaErrorIllegalAddress"));
  FakeGpu::Break(cudaSuccess);
}

// ---- Passes.

class Scaled final : public Layer {
 public:
  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* p, const MaskKey&) const override {
    return *inputs * p[0];
  }
};

StageLayout OneScale(int stage) {
  StageLayout layout;
  layout.stage = stage;
  layout.end_layer = 1;
  layout.inputs = {{{kFloats}}};
  layout.output = {{kFloats}};
  layout.consumers = 1;
  layout.reads = {{0}};
  layout.last_reader = {0, 0};
  ParameterSlot slot;
  slot.parameter.name = "scale";
  slot.parameter.size = {kFloats};
  layout.slots = {slot};
  layout.no_decay_begin = layout.statistics_begin = layout.elements = kFloats;
  return layout;
}

class CudaPassTest : public CudaCaptureTest {
 protected:
  void SetUp() override {
    CudaCaptureTest::SetUp();
    layers_.push_back(std::make_unique<Scaled>());
    const auto scope = device_->Charge(MemoryClass::kWeights, Tallied::kNo);
    weights_ = std::make_shared<StageWeights>(layout_, *device_, Precision::kFloat32);
    weights_->Bind(Flat(*device_));
  }
  // Gives stage 0 lane 0, and stage 1 lane 1, from here on. Returns lane 0.
  cudaStream_t BeginLanes() {
    device_->BeginJob(Forward(0, 0), false);
    const cudaStream_t lane = c10::cuda::getCurrentCUDAStream().stream();
    std::thread([&] {
      device_->BeginJob(Backward(0, 0), true);
      (void)device_->EndJob();
    }).join();
    (void)device_->EndJob();
    device_->BeginJob(Forward(0, 1), false);
    (void)device_->EndJob();
    FakeGpu::Run();
    return lane;
  }
  void RunPass() {
    Pass pass;
    pass.weights = weights_;
    const at::Tensor input = Wrap(Flat(*device_), device_->torch_device());
    const PassOutput output = RunForward(layers_, layout_, {input}, {}, MaskKey(), &pass);
    const PassGradients gradients = RunBackward(pass, at::empty_like(output.activation), PassHalf::kBoth);
    EXPECT_EQ(gradients.inputs.size(), 1u);
    EXPECT_EQ(gradients.parameters.size(), 1u);
  }

  const StageLayout layout_ = OneScale(1);
  std::vector<std::unique_ptr<Layer>> layers_;
  std::shared_ptr<StageWeights> weights_;
};

// The weights were made before the stage had its lane.
TEST_F(CudaPassTest, PassOnTheSecondLane_GivesTheFirstNothingToDo) {
  const cudaStream_t first = BeginLanes();
  device_->BeginJob(Forward(1, 0), false);
  EXPECT_NE(c10::cuda::getCurrentCUDAStream().stream(), first);
  EXPECT_EQ(device_->lane(), 1);
  RunPass();
  EXPECT_EQ(FakeGpu::Queued(first), 0u);
  (void)device_->EndJob();
}

TEST_F(CudaPassTest, PassOnTheSecondLane_IsCapturedThereAlone) {
  BeginLanes();
  const Tensor a = Filled(*device_, 7), b = Filled(*device_, 0);
  device_->BeginJob(Forward(1, 0), false);
  RunPass();
  const auto work = Capture([&] {
    RunPass();
    // This job is of the other stage, by the other thread of the rank.
    std::thread([&] {
      device_->BeginJob(Backward(0, 1), true);
      device_->math().Copy(b.data, a.data, a.bytes);
      (void)device_->EndJob();
    }).join();
    return absl::OkStatus();
  });
  EXPECT_TRUE(work.ok()) << work.status();
  const auto job = device_->EndJob();
  FakeGpu::Run();
  EXPECT_TRUE(job->Reached().ok());
  EXPECT_EQ(Read(*device_, b), All(7));
}

// A residual network's operations beside its convolutions, whose library needs a driver, are all
// deterministic: none is refused, none waits, and all can be captured.
TEST_F(CudaPassTest, NormPoolAndMeanOfImages_AreDeterministicAndCaptured) {
  ASSERT_TRUE(PrepareRun(RunSpec{}).ok());
  const at::TensorOptions floats = at::TensorOptions().device(device_->torch_device()).dtype(at::kFloat);
  device_->BeginJob(Forward(0, 0), false);
  const at::Tensor images = at::empty({2, 4, 17, 17}, floats).set_requires_grad(true);
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 4; ++i) parameters.push_back(at::empty({4}, floats).set_requires_grad(true));
  const auto run = [&] {
    const at::Tensor scores =
        MaxPool(BatchNorm(images, parameters.data(), /*epsilon=*/1e-5, /*training=*/true), nullptr)
            .mean({2, 3});
    const at::Tensor loss = Loss(scores, at::zeros({2}, floats.dtype(at::kLong)), nullptr);
    std::vector<at::Tensor> leaves = parameters;
    leaves.push_back(images);
    EXPECT_EQ(torch::autograd::grad({loss}, leaves).size(), 5u);
    return absl::OkStatus();
  };
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(run().ok());
  FakeGpu::ResetWaits();
  EXPECT_TRUE(run().ok());
  EXPECT_EQ(FakeGpu::waits(), 0);
  const auto work = Capture(run);
  EXPECT_TRUE(work.ok()) << work.status();
  (void)device_->EndJob();
  FakeGpu::Run();
}

// Fused attention saves its seed like this, in host memory.
TEST_F(CudaPassTest, Offload_LeavesTensorsOfTheHostWhereTheyAre) {
  device_->BeginJob(Forward(0, 0), false);
  OffloadedTensors offloaded;
  const at::Tensor seed = at::empty({}, at::kLong);
  const at::Tensor activation = Wrap(Flat(*device_), device_->torch_device());
  {
    const HostOffload scope(*device_, weights_->storages(), &offloaded);
    EXPECT_TRUE(scope.Stays(seed));
    EXPECT_TRUE(scope.Stays(weights_->parameters()[0]));
    EXPECT_FALSE(scope.Stays(activation));
  }
  (void)device_->EndJob();
}

}  // namespace
}  // namespace weft::capture_test
