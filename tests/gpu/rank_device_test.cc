// CudaRankDevice over a GPU of the tests: order, lifetimes, bytes, figures, failures. LibTorch's caching
// allocator is the real one there; a GPU's results are not.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "base/monotonic_clock.h"
#include "tests/gpu/fake_gpu.h"
#include "tests/gpu/the_gpu.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/cuda/cuda_backend.h"
#include "worker/shell/cuda/cuda_rank_device.h"

namespace weft::rank_device_test {
namespace {

using testing::FakeGpu;

// Done work in memory.
class Done final : public Fence {
 public:
  absl::StatusOr<bool> Reached() override { return true; }
};

class CudaRankDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { device_ = NewRankOfTheGpu(0); }
  void TearDown() override {
    device_.reset();
    FakeGpu::Run();
  }

  static Job Forward(int stage, int microbatch) {
    return Job::Compute(0, stage, microbatch, JobKind::kForward);
  }
  static Job Backward(int stage, int microbatch) {
    return Job::Compute(0, stage, microbatch, JobKind::kBackward);
  }

  Tensor Flat(int64_t n, MemoryClass c = MemoryClass::kActivations) {
    absl::StatusOr<Tensor> made = device_->NewFlat(n, c, DataType::kFloat32);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }
  std::vector<float> Read(const Tensor& tensor) {
    std::vector<float> values(tensor.bytes / sizeof(float));
    EXPECT_TRUE(device_->ReadBack(values.data(), tensor.data, tensor.bytes).ok());
    return values;
  }
  void Write(const Tensor& tensor, float value) {
    const std::vector<float> values(tensor.bytes / sizeof(float), value);
    EXPECT_TRUE(device_->Load(tensor.data, values.data(), tensor.bytes).ok());
  }
  static int64_t Bytes(const BytesByClass& bytes, MemoryClass c) { return bytes[static_cast<int>(c)]; }

  std::unique_ptr<RankDevice> device_;
};

TEST_F(CudaRankDeviceTest, Backend_NamesItsDevice) {
  EXPECT_EQ(TheGpu().name(), "cuda:0");
  EXPECT_EQ(TheGpu().uuid(), "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
  EXPECT_FALSE(device_->is_host());
}

TEST_F(CudaRankDeviceTest, NewFlat_IsChargedUntilItIsFreed) {
  Tensor tensor = Flat(1000, MemoryClass::kWeights);
  EXPECT_EQ(Bytes(device_->live_bytes(), MemoryClass::kWeights), 4032);  // 4000, in whole 64
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 64, 0u);
  EXPECT_EQ(tensor.place, MemoryPlace::kDevice);
  const Tensor share = tensor;
  tensor = {};
  EXPECT_EQ(Bytes(device_->live_bytes(), MemoryClass::kWeights), 4032);
}

TEST_F(CudaRankDeviceTest, LiveBytes_FallToZeroAndPeakStays) {
  { const Tensor tensor = Flat(1000, MemoryClass::kGradients); }
  EXPECT_EQ(Bytes(device_->live_bytes(), MemoryClass::kGradients), 0);
  EXPECT_EQ(Bytes(device_->peak_bytes(), MemoryClass::kGradients), 4032);
}

TEST_F(CudaRankDeviceTest, Scope_ChargesLibTorchsAllocationsAndTallies) {
  device_->BeginTally();
  c10::DataPtr block;
  {
    const auto outer = device_->Charge(MemoryClass::kBuffers, Tallied::kNo);
    const auto inner = device_->Charge(MemoryClass::kActivations, Tallied::kYes);
    block = c10::GetAllocator(c10::kCUDA)->allocate(513);
  }
  EXPECT_EQ(Bytes(device_->live_bytes(), MemoryClass::kActivations), 576);
  EXPECT_EQ(device_->tally(MemoryClass::kActivations), 576);
  EXPECT_EQ(Bytes(device_->live_bytes(), MemoryClass::kBuffers), 0);
  block.clear();
  EXPECT_EQ(device_->tally(MemoryClass::kActivations), 0);
  // The block is nobody's without a scope.
  block = c10::GetAllocator(c10::kCUDA)->allocate(513);
  EXPECT_EQ(Bytes(device_->live_bytes(), MemoryClass::kActivations), 0);
}

TEST_F(CudaRankDeviceTest, LoadAndReadBack_GiveTheBytes) {
  const Tensor tensor = Flat(100);
  Write(tensor, 3);
  EXPECT_EQ(Read(tensor), std::vector<float>(100, 3));
}

TEST_F(CudaRankDeviceTest, Job_IsReachedOnceTheDeviceHasDoneIt) {
  const Tensor a = Flat(100), b = Flat(100);
  Write(a, 2);
  device_->BeginJob(Forward(0, 0), false);
  device_->math().Copy(b.data, a.data, a.bytes);
  const std::shared_ptr<LaunchedJob> job = device_->EndJob();
  absl::StatusOr<bool> reached = job->Reached();
  ASSERT_TRUE(reached.ok()) << reached.status();
  EXPECT_FALSE(*reached);
  FakeGpu::Run();
  reached = job->Reached();
  ASSERT_TRUE(reached.ok());
  EXPECT_TRUE(*reached);
  const LaunchedJob::Figures figures = job->figures();
  EXPECT_GT(figures.start_ns, 0);
  EXPECT_GE(figures.end_ns, figures.start_ns);
  EXPECT_LE(figures.end_ns, MonotonicNow());
  EXPECT_FALSE(figures.loss.has_value());
  EXPECT_EQ(Read(b), std::vector<float>(100, 2));
}

TEST_F(CudaRankDeviceTest, JobsInSteadyState_NeverWaitForTheDevice) {
  const Tensor a = Flat(100), b = Flat(100);
  Tensor limbs = *device_->NewFlat(SumOfSquares::kLimbs, MemoryClass::kBuffers, DataType::kInt64);
  const auto step = [&](int microbatch) {
    device_->BeginJob(Forward(0, microbatch), false);
    device_->math().Copy(b.data, a.data, a.bytes);
    device_->math().Zero(limbs.data, limbs.bytes);
    const Tensor more = Flat(50000);
    const Tensor host = *device_->ToHost(b, HostUse::kOffload);
    const Tensor back = *device_->ToDevice(host, MemoryClass::kActivations);
    device_->Await(back);
    device_->ReportSquares(limbs);
    return device_->EndJob();
  };
  for (int i = 0; i < 3; ++i) {
    step(i);
    FakeGpu::Run();
  }
  FakeGpu::ResetWaits();
  std::vector<std::shared_ptr<LaunchedJob>> jobs;
  for (int i = 0; i < 20; ++i) {
    jobs.push_back(step(i));
    FakeGpu::Run();
    const absl::StatusOr<bool> reached = jobs.back()->Reached();
    ASSERT_TRUE(reached.ok() && *reached) << reached.status();
  }
  EXPECT_EQ(FakeGpu::waits(), 0);
}

TEST_F(CudaRankDeviceTest, Squares_BecomeTheNormOrNoNumber) {
  const Tensor limbs = *device_->NewFlat(SumOfSquares::kLimbs, MemoryClass::kBuffers, DataType::kInt64);
  std::vector<uint64_t> sum(SumOfSquares::kLimbs);
  sum[9] = uint64_t{9} << 10;  // 9 * 2^(288 - 298 + 10)
  ASSERT_TRUE(device_->Load(limbs.data, sum.data(), limbs.bytes).ok());
  device_->BeginJob(Job::Reduce(0, 4, 0), false);
  device_->ReportSquares(limbs);
  std::shared_ptr<LaunchedJob> job = device_->EndJob();
  FakeGpu::Run();
  ASSERT_TRUE(*job->Reached());
  EXPECT_EQ(job->figures().gradient_norm, 3.0);

  sum.assign(sum.size(), 0);
  sum.back() = SumOfSquares::kNoNorm;
  ASSERT_TRUE(device_->Load(limbs.data, sum.data(), limbs.bytes).ok());
  device_->BeginJob(Job::Reduce(1, 4, 0), false);
  device_->ReportSquares(limbs);
  job = device_->EndJob();
  FakeGpu::Run();
  ASSERT_TRUE(*job->Reached());
  EXPECT_TRUE(std::isnan(job->figures().gradient_norm.value()));
}

// Memory that the device does not know, as that of a transport.
struct Foreign {
  Foreign() {
    const auto memory = std::make_shared<std::vector<float>>(100, 5.0f);
    alive = memory;
    tensor = {{DataType::kFloat32, 1, {100}}, memory->data(), 400, memory};
    tensor.place = MemoryPlace::kDevice;
    tensor.ready = std::make_shared<Done>();
  }
  std::weak_ptr<std::vector<float>> alive;
  Tensor tensor;
};

TEST_F(CudaRankDeviceTest, Awaited_StaysUntilTheJobIsDone) {
  Foreign foreign;
  const Tensor to = Flat(100);
  device_->BeginJob(Forward(0, 0), false);
  device_->Await(foreign.tensor);
  device_->math().Copy(to.data, foreign.tensor.data, foreign.tensor.bytes);
  foreign.tensor = {};
  const std::shared_ptr<LaunchedJob> job = device_->EndJob();
  EXPECT_FALSE(*job->Reached());
  EXPECT_FALSE(foreign.alive.expired());
  FakeGpu::Run();
  EXPECT_TRUE(*job->Reached());
  EXPECT_TRUE(foreign.alive.expired());
  EXPECT_EQ(Read(to), std::vector<float>(100, 5));
}

// A backward reads like this what its forward awaited, and drops it when it is enqueued.
TEST_F(CudaRankDeviceTest, AwaitedByAnEarlierJob_StaysUntilTheOneThatDropsItIsDone) {
  Foreign foreign;
  const Tensor to = Flat(100);
  device_->BeginJob(Forward(0, 0), false);
  Tensor kept = device_->Await(device_->Await(std::exchange(foreign.tensor, {})));
  const std::shared_ptr<LaunchedJob> first = device_->EndJob();
  FakeGpu::Run();
  ASSERT_TRUE(*first->Reached());
  device_->BeginJob(Backward(0, 0), false);
  device_->math().Copy(to.data, kept.data, kept.bytes);
  kept = {};
  const std::shared_ptr<LaunchedJob> second = device_->EndJob();
  EXPECT_FALSE(*second->Reached());
  EXPECT_FALSE(foreign.alive.expired());
  FakeGpu::Run();
  EXPECT_TRUE(*second->Reached());
  EXPECT_TRUE(foreign.alive.expired());
}

// The one that is being enqueued beside may be the one that uses it.
TEST_F(CudaRankDeviceTest, DroppedBesideAJob_StaysUntilThatIsDoneToo) {
  Foreign foreign;
  const Tensor to = Flat(100);
  device_->BeginJob(Forward(0, 0), false);
  Tensor kept = device_->Await(std::exchange(foreign.tensor, {}));
  device_->EndJob();
  device_->BeginJob(Forward(1, 1), false);
  std::shared_ptr<LaunchedJob> dropping;
  std::thread([&] {
    device_->BeginJob(Backward(0, 0), true);
    kept = {};
    dropping = device_->EndJob();
  }).join();
  FakeGpu::Run();
  EXPECT_TRUE(*dropping->Reached());
  EXPECT_FALSE(foreign.alive.expired());
  const std::shared_ptr<LaunchedJob> forward = device_->EndJob();
  EXPECT_FALSE(foreign.alive.expired());
  FakeGpu::Run();
  EXPECT_TRUE(*forward->Reached());
  EXPECT_TRUE(foreign.alive.expired());
}

TEST_F(CudaRankDeviceTest, FenceThatIsNotThere_FailsTheJobByName) {
  class Never final : public Fence {
    absl::StatusOr<bool> Reached() override { return false; }
  };
  Tensor foreign = Flat(10);
  foreign.ready = std::make_shared<Never>();
  device_->BeginJob(Forward(3, 7), false);
  device_->Await(foreign);
  const std::shared_ptr<LaunchedJob> job = device_->EndJob();
  FakeGpu::Run();
  const absl::Status failed = job->Reached().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition) << failed;
  EXPECT_NE(failed.message().find("stage 3"), absl::string_view::npos) << failed;
}

TEST_F(CudaRankDeviceTest, BrokenDevice_FailsTheJobByNameAndTheNextOnes) {
  device_->BeginJob(Forward(2, 1), false);
  const std::shared_ptr<LaunchedJob> job = device_->EndJob();
  FakeGpu::Break(cudaErrorIllegalAddress);
  absl::Status failed = job->Reached().status();
  EXPECT_NE(failed.message().find("stage 2"), absl::string_view::npos) << failed;
  EXPECT_NE(failed.message().find("cudaErrorIllegalAddress"), absl::string_view::npos) << failed;
  // One that begins afterwards does not end the process, and says so too.
  device_->BeginJob(Forward(2, 2), false);
  const std::shared_ptr<LaunchedJob> next = device_->EndJob();
  EXPECT_FALSE(next->Reached().ok());
  FakeGpu::Break(cudaSuccess);
  EXPECT_FALSE(job->Reached().ok());  // it stays so
}

TEST_F(CudaRankDeviceTest, NoMemory_NamesClassBytesAndWhatIsAlive) {
  const Tensor some = Flat(1 << 20, MemoryClass::kOptimizer);
  FakeGpu::SetMemory(size_t{64} << 20);
  const absl::StatusOr<Tensor> none =
      device_->NewFlat(int64_t{1} << 30, MemoryClass::kGradients, DataType::kFloat32);
  FakeGpu::SetMemory(size_t{1} << 30);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"4294967296 bytes for gradients", "optimizer 4194304", "rank 0", "cuda:0"}) {
    EXPECT_NE(none.status().message().find(part), absl::string_view::npos) << none.status();
  }
  // Later calls have memory again.
  EXPECT_TRUE(device_->NewFlat(100, MemoryClass::kGradients, DataType::kFloat32).ok());
}

TEST_F(CudaRankDeviceTest, Offload_IsChargedToHostAndComesBack) {
  Tensor tensor = Flat(1000);
  Write(tensor, 7);
  absl::StatusOr<Tensor> host = device_->ToHost(tensor, HostUse::kOffload);
  ASSERT_TRUE(host.ok()) << host.status();
  tensor = {};
  EXPECT_EQ(Bytes(device_->live_bytes(), MemoryClass::kHost), 4032);
  EXPECT_FALSE(*host->ready->Reached());
  FakeGpu::Run();
  EXPECT_TRUE(*host->ready->Reached());
  EXPECT_EQ(static_cast<const float*>(host->data)[999], 7);
  const absl::StatusOr<Tensor> back = device_->ToDevice(*host, MemoryClass::kActivations);
  *host = {};
  ASSERT_TRUE(back.ok());
  FakeGpu::Run();
  EXPECT_EQ(Read(*back), std::vector<float>(1000, 7));
  device_->BeginJob(Forward(0, 0), false);  // lets go of what the copies held
  device_->EndJob();
  EXPECT_EQ(Bytes(device_->live_bytes(), MemoryClass::kHost), 0);
}

TEST_F(CudaRankDeviceTest, OffloadOfMuch_UsesMemoryAgainBehindItsCopies) {
  static constexpr int64_t kFloats = int64_t{4} << 20, kBytes = kFloats * 4;
  std::vector<Tensor> away;
  device_->BeginJob(Forward(0, 0), false);
  for (int i = 0; i < 8; ++i) {
    Tensor tensor = Flat(kFloats);
    FakeGpu::Enqueue(c10::cuda::getCurrentCUDAStream().stream(), [at = static_cast<float*>(tensor.data), i] {
      std::fill(at, at + kFloats, static_cast<float>(i));
    });
    // The owner stands for a storage of LibTorch's, which the device does not know.
    tensor.owner = std::make_shared<Tensor>(tensor);
    away.push_back(*device_->ToHost(tensor, HostUse::kOffload));
  }
  const std::shared_ptr<LaunchedJob> job = device_->EndJob();
  // The device has done nothing yet.
  EXPECT_LE(Bytes(device_->peak_bytes(), MemoryClass::kActivations), 4 * kBytes);
  FakeGpu::Run();
  ASSERT_TRUE(*job->Reached());
  for (int i = 0; i < 8; ++i) {
    const auto* const values = static_cast<const float*>(away[i].data);
    EXPECT_EQ(std::count(values, values + kFloats, static_cast<float>(i)), kFloats) << i;
  }
}

TEST_F(CudaRankDeviceTest, PageableSource_IsCopiedAtOnce) {
  std::vector<float> values(100, 4);
  Tensor plain{{DataType::kFloat32, 1, {100}}, values.data(), 400, std::make_shared<int>(0)};
  const absl::StatusOr<Tensor> there = device_->ToDevice(plain, MemoryClass::kActivations);
  ASSERT_TRUE(there.ok()) << there.status();
  std::fill(values.begin(), values.end(), 0.0f);
  FakeGpu::Run();
  EXPECT_EQ(Read(*there), std::vector<float>(100, 4));
}

TEST_F(CudaRankDeviceTest, Tensors_OutliveTheirRank) {
  Tensor tensor = Flat(1000), host = *device_->ToHost(tensor, HostUse::kTransfer);
  FakeGpu::Run();
  device_.reset();
  EXPECT_TRUE(*host.ready->Reached());
  tensor = {};
  host = {};
}

// The host runs ahead of the device, which does what is not ordered in any order; every value is what it
// would be if all had been done one after the other. A memory block that is used again too early, a wait that
// is missing or one for the wrong point shows as a wrong value for some seed.
TEST_F(CudaRankDeviceTest, RandomPairsAndCopies_GiveTheValuesOfOneAfterTheOther) {
  static constexpr int kStages = 2, kFloats = 64, kMicrobatches = 60;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    FakeGpu::Seed(seed);
    std::mt19937 random(seed);
    struct Pass {
      Tensor host, device;
      float value = 0;
    };
    std::array<std::deque<Pass>, kStages> passes;
    std::array<Tensor, kStages> sums = {Flat(kFloats), Flat(kFloats)};
    std::array<std::vector<std::pair<Tensor, float>>, kStages> results;
    for (Tensor& sum : sums) Write(sum, 0);

    const auto forward = [&](int stage, int b, bool overlapped) {
      device_->BeginJob(Forward(stage, b), overlapped);
      Pass pass;
      pass.value = static_cast<float>(1 + random() % 200);
      pass.device = Flat(kFloats);
      {
        // Temporaries, which are used again at once.
        const Tensor scratch = Flat(kFloats);
        const auto value = static_cast<int>(pass.value);
        device_->math().Zero(scratch.data, scratch.bytes);
        FakeGpu::Enqueue(c10::cuda::getCurrentCUDAStream().stream(),
                         [p = static_cast<float*>(scratch.data), value] {
                           std::fill(p, p + kFloats, static_cast<float>(value));
                         });
        device_->math().Copy(pass.device.data, scratch.data, scratch.bytes);
      }
      if (random() % 2 == 0) {
        pass.host = *device_->ToHost(pass.device, HostUse::kOffload);
        pass.device = {};
      }
      auto job = device_->EndJob();
      if (!pass.device.empty()) pass.device.ready = job;
      passes[stage].push_back(std::move(pass));
    };
    const auto backward = [&](int stage, int b, bool overlapped) {
      Pass pass = std::move(passes[stage].front());
      passes[stage].pop_front();
      device_->BeginJob(Backward(stage, b), overlapped);
      if (!pass.host.empty()) pass.device = *device_->ToDevice(pass.host, MemoryClass::kActivations);
      device_->Await(pass.device);
      Tensor out = Flat(kFloats);
      FakeGpu::Enqueue(c10::cuda::getCurrentCUDAStream().stream(),
                       [from = static_cast<const float*>(pass.device.data),
                        to = static_cast<float*>(out.data), sum = static_cast<float*>(sums[stage].data)] {
                         for (int i = 0; i < kFloats; ++i) {
                           sum[i] += from[i];
                           to[i] = sum[i];
                         }
                       });
      const float before = results[stage].empty() ? 0 : results[stage].back().second;
      out.ready = device_->EndJob();
      results[stage].push_back({*device_->ToHost(out, HostUse::kTransfer), before + pass.value});
    };

    for (int b = 0; b < kMicrobatches; ++b) {
      const int s = static_cast<int>(random() % kStages), other = 1 - s;
      if (!passes[other].empty() && random() % 2 == 0) {
        // A pair: the backward is enqueued by a thread of its own while the forward is in flight.
        forward(s, b, false);
        std::thread([&] { backward(other, b, true); }).join();
      } else if (!passes[s].empty() && random() % 2 == 0) {
        backward(s, b, false);
      } else {
        forward(s, b, false);
      }
      if (random() % 3 == 0) FakeGpu::Run(static_cast<int>(random() % 12));
    }
    FakeGpu::Run();
    for (int s = 0; s < kStages; ++s) {
      for (const auto& [host, value] : results[s]) {
        ASSERT_TRUE(*host.ready->Reached());
        for (int i = 0; i < kFloats; ++i) {
          ASSERT_EQ(static_cast<const float*>(host.data)[i], value) << "seed " << seed << ", stage " << s;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::rank_device_test
