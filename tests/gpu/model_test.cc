// Whole steps of the built-in models, and of exported ones, over a GPU of the tests: the host's side of
// LibTorch's CUDA operations, its autograd, allocator and graphs are real, kernels and products do nothing.
// So it shows what a step asks of the device, not what comes of it. cuDNN cannot be had without a driver:
// residual networks are not here.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "run/run_schedule.h"
#include "tests/conformance/small_runs.h"
#include "tests/conformance/training_driver.h"
#include "tests/gpu/beside_a_capture.h"
#include "tests/gpu/fake_gpu.h"
#include "tests/gpu/the_gpu.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/cuda/cuda_backend.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/reference/reference.h"
#include "worker/shell/torch/rank_device.h"

namespace weft::testing {
namespace {

struct Case {
  std::string name;
  RunSpec (*run)(const std::string& folder, int stages);
  Precision precision = Precision::kFloat32;
  std::string activations = "retain";
  bool graphs = true;
};

Device& Gpu(bool graphs) {
  const auto make = [](bool with_graphs) {
    DeviceOptions options;
    options.graphs = with_graphs;
    return CreateTorchDevice(Require(CreateCudaBackend(options))).release();
  };
  static Device* const with = make(true);
  static Device* const without = make(false);
  return graphs ? *with : *without;
}

template <const char* kModel>
RunSpec ExportedRun(const std::string&, int stages) {
  return SmallExportedRun(kModel, stages);
}
constexpr char kDropout[] = "gpt_dropout", kTied[] = "gpt_tied", kCounted[] = "gpt_counted",
               kTyped[] = "typed", kLlama[] = "known_llama", kMlp[] = "mlp", kT5[] = "known_t5";

class CudaModelTest : public ::testing::TestWithParam<Case> {
 protected:
  // Steps.
  static constexpr int kWarmUp = 5, kSpan = 3, kSpans = 10;

  void SetUp() override {
    run_ = GetParam().run(folder_.path(), 1);
    Widen(&run_.model);
    if (auto* const gpt = std::get_if<GptSpec>(&run_.model)) gpt->dropout = 0.1;
    if (auto* const mlp = std::get_if<MlpSpec>(&run_.model)) mlp->dropout = 0.1;
    run_.precision = GetParam().precision;
    run_.schedule = Require(ParseScheduleText("lpp,groups=1,ranks=1"));
    run_.schedule.activations = GetParam().activations;
    run_.train.steps = kWarmUp + kSpans * kSpan;
    rank_ = Require(Gpu(GetParam().graphs).CreateRank(*ScheduledRun::Make(run_), 0, memory_));
    Require(rank_->AddStage(0, StageRole::Whole()));
  }

  void Do(const Job& job, const std::function<absl::Status()>& work) {
    rank_->BeginJob(job, /*overlapped=*/false);
    Require(work());
    const std::shared_ptr<LaunchedJob> launched = rank_->EndJob();
    FakeGpu::Run();
    EXPECT_TRUE(Require(launched->Reached()));
  }
  void Step(int t) {
    for (int b = 0; b < run_.train.microbatches; ++b) {
      const Job forward = Job::Compute(t, 0, b, JobKind::kForward);
      Do(forward, [&] { return rank_->Forward(forward, {}, {}, t).status(); });
    }
    for (int b = 0; b < run_.train.microbatches; ++b) {
      const Job backward = Job::Compute(t, 0, b, JobKind::kBackward);
      Do(backward, [&] { return rank_->Backward(backward, {}, {}, t, /*hand_out=*/false).status(); });
    }
    const Job update = Job::Update(t, 0, 0);
    Do(update, [&] { return rank_->Update(update, {}, {}, /*keep=*/false); });
  }

  TestFolder folder_;
  PlainMemory memory_;
  RunSpec run_;
  std::unique_ptr<RankCompute> rank_;
};

TEST_P(CudaModelTest, StepsInSteadyState_NeverWaitForTheDevice) {
  const bool captures = GetParam().graphs && GetParam().activations == "retain";
  const int microbatches = run_.train.microbatches;
  int t = 0, locks = 1;
  while (t < kWarmUp) Step(t++);
  // Data that are read ahead lie in page-locked memory, and more is made whenever more of it is alive than
  // ever before. That is up to the thread that reads, so it happens at any time, but only a few times.
  for (int span = 0; span < kSpans && locks > 0; ++span) {
    FakeGpu::ResetWaits();
    const int kernels = FakeGpu::kernels(), graphs = FakeGpu::graphs();
    for (int i = 0; i < kSpan; ++i) Step(t++);
    locks = FakeGpu::locks();
    EXPECT_EQ(FakeGpu::waits() - locks, 0);
    EXPECT_EQ(FakeGpu::graphs() - graphs, captures ? kSpan * 2 * microbatches : 0);
    if (!captures) continue;
    // Some kernels run beside the graphs: the seeds of masks are written, the loss is copied out and the
    // gradients summed; then an update.
    EXPECT_LE(FakeGpu::kernels() - kernels, kSpan * (5 * microbatches + 8));
  }
  EXPECT_EQ(locks, 0);
}

// ---- Two at a time. The device is the only one that orders what they do.

// The jobs of a rank, of whatever stages, with the outputs fenced as a worker does it.
class StageJobs {
 public:
  StageJobs(const RunSpec& run, int number, MemorySource& memory)
      : run_(run), rank_(Require(Gpu(/*graphs=*/true).CreateRank(*ScheduledRun::Make(run), number, memory))) {
    for (int s = 0; s < run.stages(); ++s) Require(rank_->AddStage(s, StageRole::Whole()));
  }

  // `meanwhile`, if given, runs on another thread as soon as the device knows of the job.
  std::vector<Tensor> Do(const Job& job, std::vector<Tensor> inputs, bool overlapped = false,
                         const std::function<void()>& meanwhile = nullptr) {
    rank_->BeginJob(job, overlapped);
    std::thread other;
    if (meanwhile) other = std::thread(meanwhile);
    std::vector<Tensor> outputs = Run(job, std::move(inputs));
    const std::shared_ptr<LaunchedJob> launched = rank_->EndJob();
    for (Tensor& output : outputs) output.ready = launched;
    if (other.joinable()) other.join();
    MutexLock lock(mutex_);
    launched_.push_back(launched);
    return outputs;
  }
  // Expects that the device has done all of them.
  void ExpectDone() {
    MutexLock lock(mutex_);
    for (const std::shared_ptr<LaunchedJob>& launched : launched_) EXPECT_TRUE(Require(launched->Reached()));
    launched_.clear();
  }

 private:
  std::vector<Tensor> Run(const Job& job, std::vector<Tensor> inputs) {
    if (job.kind == JobKind::kUpdate) {
      Require(rank_->Update(job, {}, {}, /*keep=*/false));
      return {};
    }
    if (job.kind == JobKind::kBackward) {
      return Require(rank_->Backward(job, std::move(inputs), {}, job.step, /*hand_out=*/false))
          .input_gradients;
    }
    const Tensor activation = Require(rank_->Forward(job, std::move(inputs), {}, job.step)).activation;
    return activation.empty() ? std::vector<Tensor>() : std::vector<Tensor>{activation};
  }

  const RunSpec run_;
  const std::unique_ptr<RankCompute> rank_;
  Mutex mutex_;
  std::vector<std::shared_ptr<LaunchedJob>> launched_ ABSL_GUARDED_BY(mutex_);
};

RunSpec GptOn(const TestFolder& folder, int stages) {
  RunSpec run = SmallGptRun(folder.path(), stages);
  Widen(&run.model);
  std::get<GptSpec>(run.model).dropout = 0.1;
  run.schedule = Require(ParseScheduleText("lpp,groups=1,ranks=1"));
  run.train.steps = 12;
  return run;
}

TEST(CudaRanksTest, RanksThatCaptureAtTheSameTime_LeaveEachOtherAlone) {
  const TestFolder folder;
  const RunSpec run = GptOn(folder, 1);
  PlainMemory memory;
  FakeGpu::SetMemory(size_t{16} << 30);  // a capture for which there is none is not made
  const int graphs = FakeGpu::graphs();
  constexpr int kRanks = 3, kSteps = 6;
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      StageJobs rank(run, r, memory);
      for (int t = 0; t < kSteps; ++t) {
        for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
          for (int b = 0; b < run.train.microbatches; ++b) rank.Do(Job::Compute(t, 0, b, kind), {});
        }
        rank.Do(Job::Update(t, 0, 0), {});
        FakeGpu::Run();
      }
      FakeGpu::Run();
      rank.ExpectDone();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // All but the first step, in which nothing has run before.
  EXPECT_EQ(FakeGpu::graphs() - graphs, kRanks * (kSteps - 1) * 2 * run.train.microbatches);
}

// LibTorch's generator throws where it is asked for numbers beside a capture.
TEST(CudaRanksTest, NumbersThatAModelDrawsWhileAnotherRankCaptures_WaitForTheCapture) {
  RunSpec run = SmallExportedRun("drawing", 1);
  run.schedule = Require(ParseScheduleText("lpp,groups=1,ranks=1"));
  PlainMemory memory;
  StageJobs rank(run, 1, memory);
  rank.Do(Job::Compute(0, 0, 0, JobKind::kForward), {});  // libraries make what they make at first use
  const std::unique_ptr<RankDevice> captor = NewRankOfTheGpu(0);
  const Tensor zeroed = Require(captor->NewFlat(64, MemoryClass::kActivations, DataType::kFloat32));
  BesideACapture(*captor, zeroed, [&] { rank.Do(Job::Compute(0, 0, 1, JobKind::kForward), {}); });
  FakeGpu::Run();
  rank.ExpectDone();
}

// The order is that of dualpipe: a forward of one stage while the backward of another is enqueued on the
// other lane.
TEST(CudaRanksTest, PairsOfTwoStages_AreCapturedAndReplayedOnTheirLanes) {
  const TestFolder folder;
  const RunSpec run = GptOn(folder, 2);
  PlainMemory memory;
  StageJobs rank(run, 0, memory);
  const int microbatches = run.train.microbatches, graphs = FakeGpu::graphs();
  for (int t = 0; t < 6; ++t) {
    const auto forward = [&](int s, int b) { return Job::Compute(t, s, b, JobKind::kForward); };
    const auto backward = [&](int s, int b) { return Job::Compute(t, s, b, JobKind::kBackward); };
    std::vector<Tensor> activation = rank.Do(forward(0, 0), {});
    rank.Do(forward(1, 0), std::move(activation));
    for (int b = 0; b < microbatches; ++b) {
      std::vector<Tensor> gradient, next;
      const auto overlapped = [&] { gradient = rank.Do(backward(1, b), {}, /*overlapped=*/true); };
      if (b + 1 < microbatches) {
        next = rank.Do(forward(0, b + 1), {}, /*overlapped=*/false, overlapped);
        rank.Do(forward(1, b + 1), std::move(next));
      } else {
        gradient = rank.Do(backward(1, b), {});
      }
      rank.Do(backward(0, b), std::move(gradient));
      if (b % 2 == 1) FakeGpu::Run(20);
    }
    for (int s : {0, 1}) rank.Do(Job::Update(t, s, 0), {});
    FakeGpu::Run();
    rank.ExpectDone();
  }
  EXPECT_GT(FakeGpu::graphs() - graphs, 3 * 2 * 2 * microbatches);
}

// The plain loop waits for each job; a thread lets the device work meanwhile.
TEST(CudaReferenceTest, PlainLoop_NeedsNoOperationThatIsRefused) {
  const TestFolder folder;
  RunSpec run = GptOn(folder, 2);
  run.train.steps = 2;
  run.precision = Precision::kBFloat16;
  const std::unique_ptr<DeviceBackend> backend = Require(CreateCudaBackend(DeviceOptions{}));
  std::atomic<bool> done{false};
  std::thread device([&] {
    while (!done) {
      if (FakeGpu::Run() == 0) std::this_thread::yield();
    }
  });
  int steps = 0;
  const absl::Status trained = RunReference(
      run, "", [&](const ReferenceStep&) { return ++steps > 0; }, backend.get());
  done = true;
  device.join();
  EXPECT_TRUE(trained.ok()) << trained;
  EXPECT_EQ(steps, 2);
}

INSTANTIATE_TEST_SUITE_P(
    Models, CudaModelTest,
    ::testing::Values(Case{"gpt", &SmallGptRun}, Case{"gpt_bf16", &SmallGptRun, Precision::kBFloat16},
                      Case{"gpt_offload", &SmallGptRun, Precision::kFloat32, "offload"},
                      Case{"gpt_recompute", &SmallGptRun, Precision::kFloat32, "recompute"},
                      Case{"gpt_without_graphs", &SmallGptRun, Precision::kFloat32, "retain", false},
                      Case{"mlp", &SmallMlpRun}, Case{"vit", &SmallVitRun},
                      Case{"vit_bf16", &SmallVitRun, Precision::kBFloat16},
                      Case{"exported_dropout", &ExportedRun<kDropout>},
                      Case{"exported_tied", &ExportedRun<kTied>},
                      Case{"exported_counted", &ExportedRun<kCounted>},
                      Case{"exported_typed", &ExportedRun<kTyped>},
                      Case{"exported_llama", &ExportedRun<kLlama>}, Case{"exported_mlp", &ExportedRun<kMlp>},
                      Case{"exported_t5", &ExportedRun<kT5>}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace weft::testing
