// What it costs to split a backward: the time of backward_input and backward_weight together over that of the
// fused backward, for the middle stage of a gpt and of an mlp. The two are timed in turns, and the best of
// each counts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "worker/shell/compute/compute.h"

namespace weft {
namespace {

constexpr int kMicrobatches = 4;
constexpr int kRounds = 12;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

std::string Scratch(const char* name) { return (std::filesystem::temp_directory_path() / name).string(); }

RunSpec Gpt(int width, int heads, int context, int samples) {
  const std::string path = Scratch("weft_bench_text");
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

RunSpec Mlp(int width, int samples) {
  const std::string images = Scratch("weft_bench_images"), labels = Scratch("weft_bench_labels");
  std::ofstream(images, std::ios::binary)
      << std::string("\0\0\x08\x03\0\0\0\x01\0\0\0\x01\0\0\0\x01\x07", 17);
  std::ofstream(labels, std::ios::binary) << std::string("\0\0\x08\x01\0\0\0\x01\0", 9);
  MlpSpec model;
  model.layers = 6;
  model.width = width;
  model.inputs = 1;
  RunSpec run;
  run.model = model;
  run.data.source = IdxData{images, labels};
  run.train.batch = samples * kMicrobatches;
  run.train.microbatches = kMicrobatches;
  run.layers_of_stage = {1, 4, 1};
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
  explicit Stage(const RunSpec& run) : rank_(*CpuOf().CreateRank(run, 0, memory_)) {
    for (int s : {0, 1}) Require(rank_->AddStage(s, true));
    auto first = rank_->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {});
    Require(first.status());
    x_ = Filled(first->activation);
    g_ = Filled(first->activation);
  }

  // Seconds of the backwards of a step.
  double Time(bool split) {
    ++step_;
    for (int b = 0; b < kMicrobatches; ++b)
      Require(rank_->Forward(Job::Compute(step_, 1, b, JobKind::kForward), x_, {}).status());
    const auto start = std::chrono::steady_clock::now();
    for (int b = 0; b < kMicrobatches; ++b) {
      const auto backward = [&](JobKind kind, const Tensor& g) {
        Require(rank_->Backward(Job::Compute(step_, 1, b, kind), g, {}, false).status());
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
  for (int i = 0; i < kRounds; ++i) {
    fused = std::min(fused, stage.Time(false));
    split = std::min(split, stage.Time(true));
  }
  std::printf("%-40s %10.3f ms %10.3f ms %8.3f\n", name.c_str(), 1e3 * fused, 1e3 * split, split / fused);
  std::fflush(stdout);
}

void ReportAll() {
  std::printf("%-40s %13s %13s %8s\n", "middle stage", "fused", "two halves", "ratio");
  Report("gpt, 2 blocks, width 128, 4 x 64 tokens", Gpt(128, 4, 64, 4));
  Report("gpt, 2 blocks, width 256, 4 x 128 tokens", Gpt(256, 4, 128, 4));
  Report("gpt, 2 blocks, width 512, 2 x 256 tokens", Gpt(512, 8, 256, 2));
  Report("mlp, 4 layers, width 256, 32 samples", Mlp(256, 32));
  Report("mlp, 4 layers, width 1024, 64 samples", Mlp(1024, 64));
  Report("mlp, 4 layers, width 2048, 128 samples", Mlp(2048, 128));
}

}  // namespace
}  // namespace weft

int main() { weft::ReportAll(); }
