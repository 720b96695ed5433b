// The test device by itself: it computes what the CPU computes, is late, and finds mistakes.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "run/model_layers.h"
#include "tests/testgpu/load_testgpu.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

// A backend with these variables set while it is made.
std::unique_ptr<DeviceBackend> BackendWith(
    const std::vector<std::pair<const char*, std::string>>& variables) {
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  std::unique_ptr<DeviceBackend> backend = LoadTestGpu();
  for (const auto& [name, value] : variables) unsetenv(name);
  PrepareProcess();
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  backend->PrepareThread();
  return backend;
}

DeviceBackend& Backend() {
  static const std::unique_ptr<DeviceBackend> backend = BackendWith({});
  return *backend;
}

c10::Device Gpu() {
  Backend();
  return c10::Device("testgpu:0");
}

at::Tensor Random(at::IntArrayRef size) { return at::randn(size); }

// Compares bits, also of what is no number.
bool SameBits(const at::Tensor& gpu, const at::Tensor& cpu) {
  const at::Tensor there = gpu.cpu().contiguous(), here = cpu.contiguous();
  return there.sizes() == here.sizes() && there.dtype() == here.dtype() &&
         std::memcmp(there.const_data_ptr(), here.const_data_ptr(), here.nbytes()) == 0;
}

class TestGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    Backend();
    at::manual_seed(7);
  }
};

TEST_F(TestGpu, Operations_OfManyKinds_GiveTheCpusBits) {
  const at::Tensor a = Random({6, 5}), b = Random({5, 7}), long_ones = at::arange(6);
  const std::vector<std::pair<std::string, std::function<at::Tensor(c10::Device)>>> operations = {
      {"product", [&](c10::Device d) { return a.to(d).matmul(b.to(d)); }},
      {"transposed", [&](c10::Device d) { return a.to(d).t().matmul(a.to(d)); }},
      {"sum of columns", [&](c10::Device d) { return a.to(d).sum(0); }},
      {"slice of a view",
       [&](c10::Device d) {
         return a.to(d).view({5, 6}).narrow(1, 2, 3) + 1;
       }},
      {"in place", [&](c10::Device d) { return a.to(d).clone().add_(2.5).mul_(a.to(d)); }},
      {"in place in a view",
       [&](c10::Device d) {
         at::Tensor c = a.to(d).clone();
         c.select(0, 3).zero_();
         return c;
       }},
      {"into a given tensor",
       [&](c10::Device d) {
         at::Tensor out = at::empty({0}, at::TensorOptions(d));
         at::mm_out(out, a.to(d), b.to(d));
         return out;
       }},
      {"joined",
       [&](c10::Device d) {
         return at::cat({a.to(d), a.to(d)}, 1);
       }},
      {"picked by index", [&](c10::Device d) { return a.to(d).index_select(0, long_ones.to(d).flip(0)); }},
      {"made there",
       [&](c10::Device d) {
         return at::full({3, 4}, 1.5, at::TensorOptions(d));
       }},
      {"other type", [&](c10::Device d) { return a.to(d).to(at::kBFloat16).to(at::kDouble); }},
      {"two results", [&](c10::Device d) { return std::get<0>(a.to(d).max(1)); }},
  };
  for (const auto& [name, operation] : operations) {
    SCOPED_TRACE(name);
    const at::Tensor there = operation(Gpu());
    EXPECT_TRUE(there.is_privateuseone());
    EXPECT_TRUE(SameBits(there, operation(at::kCPU)));
  }
}

// Returns the largest difference of the operation on float32 inputs from float64's result, over its largest
// number.
double ErrorOf(const std::function<at::Tensor(c10::TensorOptions)>& operation) {
  const at::Tensor gpu = operation(at::TensorOptions(Gpu()).dtype(at::kFloat)).cpu().to(at::kDouble);
  const at::Tensor exact = operation(at::TensorOptions(at::kCPU).dtype(at::kDouble));
  return ((gpu - exact).abs().max() / exact.abs().max()).item<double>();
}

TEST_F(TestGpu, OtherArithmetics_AreRightAndNotTheCpus) {
  const at::Tensor a = Random({37, 83}), b = Random({83, 41}), bias = Random({41});
  const at::Tensor images = Random({4, 5, 9, 9}), kernel = Random({6, 5, 3, 3}), weight = Random({83});
  const std::vector<std::pair<std::string, std::function<at::Tensor(c10::TensorOptions)>>> operations = {
      {"product", [&](c10::TensorOptions o) { return a.to(o).mm(b.to(o)); }},
      {"with bias", [&](c10::TensorOptions o) { return at::addmm(bias.to(o), a.to(o), b.to(o)); }},
      {"layer norm",
       [&](c10::TensorOptions o) { return at::layer_norm(a.to(o), {83}, weight.to(o), weight.to(o)); }},
      {"convolution", [&](c10::TensorOptions o) { return at::conv2d(images.to(o), kernel.to(o), {}, 1, 1); }},
      {"gradients of a convolution", [&](c10::TensorOptions o) {
         const at::Tensor x = images.to(o).requires_grad_(), w = kernel.to(o).requires_grad_();
         const at::Tensor y = at::conv2d(x, w, {}, 1, 1);
         const auto made = torch::autograd::grad({(y * y).sum()}, {x, w});
         return at::cat({made[0].flatten(), made[1].flatten()});
       }}};
  std::vector<at::Tensor> cpu;
  cpu.reserve(operations.size());
  for (const auto& [name, operation] : operations)
    cpu.push_back(operation(at::TensorOptions(at::kCPU).dtype(at::kFloat)));
  for (const char* arithmetic :
       {"wide", "split", "other_kernels", "winograd", "tf32", "bf16", "no_bias", "wrong_epsilon"}) {
    const auto backend = BackendWith({{"WEFT_TESTGPU_ARITHMETIC", arithmetic}});
    const std::string wrong = arithmetic;
    int others = 0;
    for (size_t i = 0; i < operations.size(); ++i) {
      const auto& [name, operation] = operations[i];
      SCOPED_TRACE(absl::StrCat(arithmetic, ", ", name));
      const bool product = name != "layer norm";
      const double least = wrong == "tf32" && product                         ? 1e-5
                           : wrong == "bf16" && product                       ? 1e-4
                           : wrong == "no_bias" && name == "with bias"        ? 1e-2
                           : wrong == "wrong_epsilon" && name == "layer norm" ? 1e-5
                                                                              : 0;
      EXPECT_GE(ErrorOf(operation), least);
      EXPECT_LT(ErrorOf(operation), least > 0 ? 1000 * least : 5e-6);
      others += SameBits(operation(at::TensorOptions(Gpu()).dtype(at::kFloat)), cpu[i]) ? 0 : 1;
    }
    EXPECT_GT(others, 0) << arithmetic;
  }
  Backend().PrepareThread();
}

TEST_F(TestGpu, ArithmeticOfNoName_IsRefused) {
  setenv("WEFT_TESTGPU_ARITHMETIC", "float8", 1);
  const auto loaded = LoadDevice({"testgpu", 0}, {}, FoldersOfThisProgram());
  unsetenv("WEFT_TESTGPU_ARITHMETIC");
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("names no arithmetic: float8"));
}

TEST_F(TestGpu, Views_ShareTheDevicesMemory) {
  const at::Tensor a = Random({4, 6}).to(Gpu());
  for (const at::Tensor& view : {a.t(), a.view({-1}), a.narrow(0, 1, 2), a.unsqueeze(0), a.expand({2, 4, 6})})
    EXPECT_TRUE(view.storage().is_alias_of(a.storage()));
  EXPECT_FALSE(a.t().contiguous().storage().is_alias_of(a.storage()));
}

// A layer's output and the gradients of its inputs and parameters.
std::vector<at::Tensor> RunLayer(const Layer& layer, const std::vector<at::Tensor>& values,
                                 c10::Device device) {
  std::vector<at::Tensor> leaves;
  leaves.reserve(values.size());
  for (const at::Tensor& value : values) leaves.push_back(value.to(device).detach().set_requires_grad(true));
  const at::AutoGradMode with_graph(true);
  const at::Tensor y = layer.Forward(leaves.data(), leaves.data() + 1, {});
  const at::Tensor weight = at::linspace(-1, 1, y.numel()).view(y.sizes()).to(device);
  std::vector<at::Tensor> results =
      torch::autograd::grad({(y * weight).sum()}, leaves, {}, std::nullopt, false, true);
  results.push_back(y.detach());
  return results;
}

void ExpectLayerAlike(const ModelSpec& model, size_t layer, const at::Tensor& input) {
  std::vector<at::Tensor> values = {input};
  const std::vector<LayerSpec> described = DescribeLayers(model);
  for (const ParameterSpec& parameter : described[layer].parameters) values.push_back(Random(parameter.size));
  const std::vector<std::unique_ptr<Layer>> layers = BuildLayers(model);
  const std::vector<at::Tensor> cpu = RunLayer(*layers[layer], values, at::kCPU);
  const std::vector<at::Tensor> gpu = RunLayer(*layers[layer], values, Gpu());
  ASSERT_EQ(cpu.size(), gpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(cpu[i].defined(), gpu[i].defined());
    if (!cpu[i].defined()) continue;
    EXPECT_TRUE(gpu[i].is_privateuseone());
    EXPECT_TRUE(SameBits(gpu[i], cpu[i]));
  }
}

TEST_F(TestGpu, GptBlock_ForwardAndBackward_GiveTheCpusBits) {
  GptSpec gpt;
  gpt.layers = 2;
  gpt.width = 32;
  gpt.heads = 4;
  gpt.context = 16;
  ExpectLayerAlike(gpt, 1, Random({3, 16, 32}));
  ExpectLayerAlike(gpt, 3, Random({3, 16, 32}));
}

TEST_F(TestGpu, ResNetBlock_ForwardAndBackward_GiveTheCpusBits) {
  ResNetSpec resnet;
  resnet.depth = 18;
  resnet.width = 8;
  ExpectLayerAlike(resnet, 1, Random({4, 8, 6, 6}));
  ExpectLayerAlike(resnet, 3, Random({4, 8, 6, 6}));  // with a stride and a shortcut of its own
}

TEST_F(TestGpu, MemoryOnTheHost_EndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "fast");
  const at::Tensor a = Random({4}).to(Gpu());
  EXPECT_DEATH(
      {
        std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would report what is meant here
        const volatile float read = *static_cast<const float*>(a.const_data_ptr());
        (void)read;
      },
      "");
}

// ---- Ranks.

const Job kForward = Job::Compute(0, 0, 0, JobKind::kForward);

std::unique_ptr<RankDevice> MakeRank(DeviceBackend& backend, Rank rank) {
  static PlainMemory* const host = new PlainMemory;
  return *backend.CreateRankDevice(rank, *host);
}

Tensor HostTensor(const std::vector<float>& values) {
  Tensor tensor;
  auto owner = std::make_shared<std::vector<float>>(values);
  tensor.shape = {DataType::kFloat32, 1, {static_cast<int64_t>(values.size())}};
  tensor.data = owner->data();
  tensor.bytes = values.size() * sizeof(float);
  tensor.owner = owner;
  return tensor;
}

// Returns values of memory that the host has.
std::vector<float> Values(const Tensor& tensor) {
  const auto* const data = static_cast<const float*>(tensor.data);
  return {data, data + tensor.bytes / sizeof(float)};
}

absl::Status WaitUntilReached(Fence& fence) {
  for (;;) {
    const absl::StatusOr<bool> reached = fence.Reached();
    if (!reached.ok()) return reached.status();
    if (*reached) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// Reached when the test says so.
class Gate final : public Fence {
 public:
  absl::StatusOr<bool> Reached() override { return open_.load(); }
  void Open() { open_ = true; }

 private:
  std::atomic<bool> open_{false};
};

TEST_F(TestGpu, Copies_AreDoneLater_AndReadThen) {
  const auto rank = MakeRank(Backend(), 0);
  const auto gate = std::make_shared<Gate>();
  Tensor on_host = HostTensor({1, 2, 3});
  on_host.ready = gate;
  const Tensor there = *rank->ToDevice(on_host, MemoryClass::kActivations);
  EXPECT_EQ(there.place, MemoryPlace::kDevice);
  const Tensor back = *rank->ToHost(there, HostUse::kTransfer);
  EXPECT_EQ(back.place, MemoryPlace::kHost);
  EXPECT_FALSE(*there.ready->Reached());
  EXPECT_FALSE(*back.ready->Reached());
  static_cast<float*>(on_host.data)[0] = 9;
  gate->Open();
  ASSERT_TRUE(WaitUntilReached(*back.ready).ok());
  EXPECT_EQ(Values(back), (std::vector<float>{9, 2, 3}));
}

TEST_F(TestGpu, Job_EndsLater_WithItsFigures) {
  const auto backend = BackendWith({{"WEFT_TESTGPU_DELAY_US", "20000"}});
  const auto rank = MakeRank(*backend, 0);
  rank->BeginJob(kForward, /*overlapped=*/false);
  rank->ReportLoss(at::full({}, 2.5, at::TensorOptions(Gpu())));
  const std::shared_ptr<LaunchedJob> job = rank->EndJob();
  ASSERT_TRUE(WaitUntilReached(*job).ok());
  EXPECT_EQ(job->figures().loss, 2.5);
  EXPECT_GT(job->figures().end_ns, job->figures().start_ns);
}

TEST_F(TestGpu, Bytes_AreCountedByClassAndRank) {
  const auto rank = MakeRank(Backend(), 0), other = MakeRank(Backend(), 1);
  constexpr auto kWeights = static_cast<size_t>(MemoryClass::kWeights);
  constexpr auto kActivations = static_cast<size_t>(MemoryClass::kActivations);
  {
    const Tensor flat = *rank->NewFlat(1000, MemoryClass::kWeights, DataType::kFloat32);
    EXPECT_GE(rank->live_bytes()[kWeights], 4000);
    rank->BeginTally();
    const auto scope = rank->Charge(MemoryClass::kActivations, Tallied::kYes);
    const at::Tensor a = at::empty({1000}, at::TensorOptions(Gpu()));
    EXPECT_GE(rank->tally(MemoryClass::kActivations), 4000);
    EXPECT_EQ(rank->tally(MemoryClass::kActivations), rank->live_bytes()[kActivations]);
  }
  EXPECT_EQ(rank->tally(MemoryClass::kActivations), 0);
  EXPECT_EQ(rank->live_bytes(), BytesByClass{});
  EXPECT_GE(rank->peak_bytes()[kWeights], 4000);
  EXPECT_EQ(other->peak_bytes(), BytesByClass{});
}

TEST_F(TestGpu, MemoryThatIsGivenBack_HoldsNoNumbers) {
  const float* address = nullptr;
  {
    const at::Tensor a = at::ones({64}, at::TensorOptions(Gpu()));
    address = a.const_data_ptr<float>();
  }
  const at::Tensor next = at::empty({64}, at::TensorOptions(Gpu()));
  EXPECT_EQ(next.const_data_ptr<float>(), address);  // the latest that fits
  EXPECT_TRUE(next.isnan().all().cpu().item<bool>());
}

TEST_F(TestGpu, TooMuchMemory_IsRefusedNamingClassAndBytes) {
  const auto backend = BackendWith({{"WEFT_TESTGPU_MEMORY", "100000"}});
  const auto rank = MakeRank(*backend, 0);
  const absl::Status refused = rank->NewFlat(100000, MemoryClass::kGradients, DataType::kFloat32).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no memory for 400000 bytes of class gradients"));
  const auto scope = rank->Charge(MemoryClass::kActivations, Tallied::kNo);
  EXPECT_THROW(at::empty({100000}, at::TensorOptions(Gpu())), c10::OutOfMemoryError);
  BackendWith({});
}

TEST_F(TestGpu, NthAllocationAndJob_FailWhenAsked) {
  const auto backend = BackendWith({{"WEFT_TESTGPU_FAIL_ALLOCATION", "2"}, {"WEFT_TESTGPU_FAIL_JOB", "2"}});
  const auto rank = MakeRank(*backend, 0);
  EXPECT_TRUE(rank->NewFlat(1, MemoryClass::kWeights, DataType::kFloat32).ok());
  EXPECT_FALSE(rank->NewFlat(1, MemoryClass::kWeights, DataType::kFloat32).ok());
  EXPECT_TRUE(rank->NewFlat(1, MemoryClass::kWeights, DataType::kFloat32).ok());
  std::vector<absl::Status> ends;
  for (int i = 0; i < 3; ++i) {
    rank->BeginJob(Job::Compute(0, 0, i, JobKind::kForward), false);
    ends.push_back(WaitUntilReached(*rank->EndJob()));
  }
  EXPECT_TRUE(ends[0].ok());
  EXPECT_THAT(std::string(ends[1].message()), HasSubstr("micro-batch 1"));
  EXPECT_FALSE(ends[2].ok());  // a device that failed stays so
}

// ---- Mistakes.

absl::Status JobOf(RankDevice& rank, const std::function<void()>& work) {
  rank.BeginJob(kForward, false);
  try {
    work();
  } catch (const c10::Error&) {
  }
  return WaitUntilReached(*rank.EndJob());
}

at::Tensor Wrapped(const Tensor& tensor) {
  return at::from_blob(tensor.data, {tensor.shape.size[0]}, at::TensorOptions(Gpu()));
}

TEST_F(TestGpu, CopyThatIsNotAwaited_IsFound) {
  const auto backend = BackendWith({{"WEFT_TESTGPU_DELAY_US", "200000"}});
  const auto rank = MakeRank(*backend, 0);
  const Tensor there = *rank->ToDevice(HostTensor({1, 2, 3}), MemoryClass::kBuffers);
  const absl::Status ended = JobOf(*rank, [&] { Wrapped(there) + 1; });
  EXPECT_THAT(std::string(ended.message()),
              HasSubstr("uses memory that a copy fills, which was not awaited"));
}

TEST_F(TestGpu, MemoryOfAnotherRank_IsUsedOnlyWhenAwaited) {
  const auto owner = MakeRank(Backend(), 0), rank = MakeRank(Backend(), 1), second = MakeRank(Backend(), 2);
  const Tensor there = *owner->ToDevice(HostTensor({1, 2, 3}), MemoryClass::kBuffers);
  EXPECT_TRUE(JobOf(*rank, [&] {
                rank->Await(there);
                Wrapped(there) + 1;
              }).ok());
  ASSERT_TRUE(WaitUntilReached(*there.ready).ok());
  EXPECT_THAT(std::string(JobOf(*second, [&] { Wrapped(there) + 1; }).message()),
              HasSubstr("uses memory of rank 0, which was not awaited"));
}

TEST_F(TestGpu, TensorThatSaysReadyTooEarly_IsFound) {
  const auto backend = BackendWith({{"WEFT_TESTGPU_DELAY_US", "200000"}});
  const auto owner = MakeRank(*backend, 0), rank = MakeRank(*backend, 1);
  owner->BeginJob(kForward, false);
  Tensor made = *owner->NewFlat(3, MemoryClass::kBuffers, DataType::kFloat32);
  const std::shared_ptr<LaunchedJob> job = owner->EndJob();
  EXPECT_THAT(std::string(JobOf(*rank, [&] { rank->Await(made); }).message()),
              HasSubstr("rank 0 writes the memory after the tensor was said to be ready"));
  made.ready = job;
  const auto third = MakeRank(*backend, 2);
  EXPECT_TRUE(JobOf(*third, [&] { third->Await(made); }).ok());
}

TEST_F(TestGpu, WaitingInAJob_IsFound) {
  const auto rank = MakeRank(Backend(), 0), second = MakeRank(Backend(), 1);
  const at::Tensor a = Random({2}).to(Gpu());
  EXPECT_THAT(std::string(JobOf(*rank, [&] { a.sum().item<float>(); }).message()),
              HasSubstr("_local_scalar_dense waits for the device"));
  EXPECT_THAT(std::string(JobOf(*second, [&] { a.cpu(); }).message()),
              HasSubstr("a copy to the host waits for the device"));
}

TEST_F(TestGpu, DataInHostMemoryOfTheDevice_ComesInOrder) {
  const auto backend = BackendWith({{"WEFT_TESTGPU_DELAY_US", "20000"}});
  const auto rank = MakeRank(*backend, 0);
  const at::Tensor data = rank->NewHostTensor({3}, at::kFloat);
  data.fill_(4);
  EXPECT_TRUE(JobOf(*rank, [&] {
                const at::Tensor there = data.to(Gpu(), /*non_blocking=*/true);
                rank->ReportLoss((there * 2).sum());
              }).ok());
}

TEST_F(TestGpu, ThreadThatWasNotPrepared_IsFound) {
  const at::Tensor a = Random({2}).to(Gpu());
  std::string message;
  std::thread([&] {
    try {
      a + 1;
    } catch (const c10::Error& e) {
      message = e.what_without_backtrace();
    }
  }).join();
  EXPECT_THAT(message, HasSubstr("a thread that was not prepared"));
}

}  // namespace
}  // namespace weft::testing
