// Measures the cost of splitting a backward: the time of backward_input and backward_weight together over
// that of the fused backward, for the middle stage of a gpt and of an mlp. The two are timed in turns, and
// the best of each counts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "run/run_schedule.h"
#include "tests/bench/mlp_run.h"
#include "worker/shell/compute/compute.h"

namespace weft {
namespace {

constexpr int kMicrobatches = 4;
constexpr int kRoundsLeast = 10;
constexpr double kSecondsLeast = 2;  // of a case, so that short ones meet a quiet moment too

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

RunSpec Gpt(int width, int heads, int context, int samples) {
  const std::string path = ScratchFile("weft_bench_text");
  std::ofstream(path, std::ios::binary) << std::string(static_cast<size_t>(2 * context + 2), 'a');
  GptSpec model;
  model.layers = 4;
  model.width = width;
  model.heads = heads;
  model.context = context;
  RunSpec run;
  run.model = model;
  run.data.source = TextData{path};
  run.train.batch = samples * kMicrobatches;
  run.train.microbatches = kMicrobatches;
  run.layers_of_stage = {2, 2, 2};
  return run;
}

// An independent tensor of the same shape.
Tensor Filled(const Tensor& like) {
  constexpr size_t kAlign = 64;
  void* data = std::aligned_alloc(kAlign, (like.bytes + kAlign - 1) / kAlign * kAlign);
  auto* values = static_cast<float*>(data);
  for (size_t i = 0; i < like.bytes / sizeof(float); ++i) values[i] = (static_cast<float>(i % 17) - 8) / 170;
  return {like.shape, data, like.bytes, std::shared_ptr<void>(data, &std::free)};
}

class Stage {
 public:
  explicit Stage(const RunSpec& run) : rank_(*CpuOf().CreateRank(*ScheduledRun::Make(run), 0, memory_)) {
    for (int s : {0, 1}) Require(rank_->AddStage(s, StageRole::Whole()));
    auto first = rank_->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {}, 0);
    Require(first.status());
    x_ = Filled(first->activation);
    g_ = Filled(first->activation);
  }

  // Seconds of the backwards of a step.
  double Time(bool split) {
    ++step_;
    for (int b = 0; b < kMicrobatches; ++b)
      Require(rank_->Forward(Job::Compute(step_, 1, b, JobKind::kForward), {x_}, {}, 0).status());
    const auto start = std::chrono::steady_clock::now();
    for (int b = 0; b < kMicrobatches; ++b) {
      const auto backward = [&](JobKind kind, const Tensor& g) {
        Require(rank_->Backward(Job::Compute(step_, 1, b, kind), {g}, {}, 0, false).status());
      };
      if (split) {
        backward(JobKind::kBackwardInput, g_);
        backward(JobKind::kBackwardWeight, {});
      } else {
        backward(JobKind::kBackward, g_);
      }
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    Require(rank_->TakeSum(Job::Update(step_, 1, 0), 0, 1).status());
    return seconds.count() / kMicrobatches;
  }

 private:
  static Device& CpuOf() {
    static const std::unique_ptr<Device> device = CreateCpuDevice();
    return *device;
  }

  PlainMemory memory_;
  std::unique_ptr<RankCompute> rank_;
  Tensor x_, g_;
  int step_ = 0;
};

void Report(const std::string& name, const RunSpec& run) {
  Stage stage(run);
  double fused = std::numeric_limits<double>::infinity(), split = fused;
  stage.Time(false);
  stage.Time(true);
  double spent = 0;
  for (int i = 0; i < kRoundsLeast || spent < kSecondsLeast; ++i) {
    const double one = stage.Time(false), two = stage.Time(true);
    fused = std::min(fused, one);
    split = std::min(split, two);
    spent += kMicrobatches * (one + two);
  }
  std::printf("%-40s %10.3f ms %10.3f ms %8.3f\n", name.c_str(), 1e3 * fused, 1e3 * split, split / fused);
  std::fflush(stdout);
}

void ReportAll() {
  std::printf("%-40s %13s %13s %8s\n", "middle stage", "fused", "two halves", "ratio");
  Report("gpt, 2 blocks, width 128, 4 x 64 tokens", Gpt(128, 4, 64, 4));
  Report("gpt, 2 blocks, width 256, 4 x 128 tokens", Gpt(256, 4, 128, 4));
  Report("gpt, 2 blocks, width 512, 2 x 256 tokens", Gpt(512, 8, 256, 2));
  Report("mlp, 4 layers, width 256, 32 samples", MlpRun(256, 4, 32, kMicrobatches));
  Report("mlp, 4 layers, width 1024, 64 samples", MlpRun(1024, 4, 64, kMicrobatches));
  Report("mlp, 4 layers, width 2048, 128 samples", MlpRun(2048, 4, 128, kMicrobatches));
}

}  // namespace
}  // namespace weft

int main() { weft::ReportAll(); }
