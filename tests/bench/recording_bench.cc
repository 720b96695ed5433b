// Measures the cost of recording hashes: the time of a rank's step, job by job as a worker runs it, with
// `record: hashes` over that without. The step is that of the middle stage of a gpt: each micro-batch's
// forward and backward, whose inputs come from other processes, and the sum and the update. The two are
// timed in turns, by the CPU time of the thread, so that other programs disturb little; the best of each
// counts. The worker's other threads do nothing for a hash but send its 15 bytes with the job's completion.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "run/run_schedule.h"
#include "tests/bench/mlp_run.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/job_runner.h"

namespace weft {
namespace {

constexpr int kMicrobatches = 4, kReplicas = 4;
constexpr int kRoundsLeast = 20;
constexpr double kSecondsLeast = 8;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
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
  run.train.optimizer = AdamWSpec();
  run.layers_of_stage = {2, 2, 2};
  return run;
}

Tensor Filled(const Tensor& like) {
  constexpr size_t kAlign = 64;
  void* data = std::aligned_alloc(kAlign, (like.bytes + kAlign) / kAlign * kAlign);
  auto* values = static_cast<float*>(data);
  for (size_t i = 0; i < like.bytes / sizeof(float); ++i) values[i] = (static_cast<float>(i % 17) - 8) / 170;
  return {like.shape, data, like.bytes, std::shared_ptr<void>(data, &std::free)};
}

// A rank with the middle stage: it holds all of it, or it is one of several replicas, which sum in slices.
class Stage {
 public:
  Stage(RunSpec run, bool records, int replicas) : records_(records), replicas_(replicas) {
    run.record_hashes = records;
    rank_ = *CpuOf().CreateRank(*ScheduledRun::Make(run), 0, memory_);
    for (const int s : {0, 1}) Require(rank_->AddStage(s, StageRole::Whole()));
    auto first = rank_->Forward(Job::Compute(0, 0, 0, JobKind::kForward), {}, {}, 0);
    Require(first.status());
    x_ = Filled(first->activation);
    g_ = Filled(first->activation);
  }

  // Returns the seconds of a step.
  double Time() {
    const double start = ThreadSeconds();
    std::vector<Tensor> gradients;
    for (int b = 0; b < kMicrobatches; ++b)
      Run(Job::Compute(step_, 1, b, JobKind::kForward), {{TensorKind::kActivation, x_}});
    for (int b = 0; b < kMicrobatches; ++b) {
      gradients.push_back(
          Run(Job::Compute(step_, 1, b, JobKind::kBackward), {{TensorKind::kInputGradient, g_}}).gradient);
    }
    if (replicas_ == 1) {
      Run(Job::Update(step_, 1, 0), {});
    } else {
      const Tensor sum = Reduce(gradients);
      std::vector<std::pair<TensorKind, Tensor>> sums;
      for (int i = 0; i < replicas_; ++i) sums.emplace_back(TensorKind::kGradientSum, sum);
      Run(Job::Update(step_, 1, 0), sums);
    }
    ++step_;
    return ThreadSeconds() - start;
  }

 private:
  static Device& CpuOf() {
    static const std::unique_ptr<Device> device = CreateCpuDevice();
    return *device;
  }

  JobTask TaskOf(const Job& job) const {
    JobTask task;
    task.start.job = job;
    task.start.version = step_;
    task.parts = replicas_;
    if (job.kind == JobKind::kBackward && replicas_ > 1)
      task.start.operations = {Operation::kBackward, Operation::kHandOutGradient};
    if (records_) {
      task.hashes.emplace();
      task.hashes->first_version = -1;  // not the initial weights, which are hashed once
    }
    return task;
  }

  JobOutcome Run(const Job& job, const std::vector<std::pair<TensorKind, Tensor>>& inputs) {
    JobTask task = TaskOf(job);
    for (const auto& [kind, tensor] : inputs) {
      TensorKey key;
      key.kind = kind;
      if (records_) NoteArrival(kind, false, task.inputs.size(), &task);
      task.start.inputs.push_back(key);
      task.inputs.push_back(tensor);
    }
    return RunTask(std::move(task));
  }

  // Sums the first slice of the gradients, and returns it.
  Tensor Reduce(const std::vector<Tensor>& gradients) {
    JobTask task = TaskOf(Job::Reduce(step_, 1, 0));
    for (int b = 0; b < kMicrobatches; ++b) {
      TensorKey key;
      key.kind = TensorKind::kGradient;
      key.microbatch = b;
      if (records_) NoteArrival(key.kind, true, task.gradients.size(), &task);
      task.start.gradients.push_back(key);
      task.gradients.push_back(Slice(gradients[b], 0, replicas_));
    }
    return RunTask(std::move(task)).gradient_sum;
  }

  static void NoteArrival(TensorKind kind, bool is_gradient, size_t index, JobTask* task) {
    const HashedValue value = kind == TensorKind::kActivation      ? HashedValue::kActivation
                              : kind == TensorKind::kInputGradient ? HashedValue::kInputGradient
                              : kind == TensorKind::kGradient      ? HashedValue::kGradient
                                                                   : HashedValue::kGradientSum;
    task->hashes->arrived.push_back({is_gradient, index, {value, /*received=*/true}});
  }

  JobOutcome RunTask(JobTask task) {
    JobOutcome outcome = RunJob(*rank_, std::move(task));
    Require(outcome.status);
    return outcome;
  }

  const bool records_;
  const int replicas_;
  PlainMemory memory_;
  std::unique_ptr<RankCompute> rank_;
  Tensor x_, g_;
  int step_ = 0;
};

void Report(const std::string& name, const RunSpec& run, int replicas) {
  Stage plain(run, false, replicas), recorded(run, true, replicas);
  double without = std::numeric_limits<double>::infinity(), with = without;
  plain.Time();
  recorded.Time();
  double spent = 0;
  for (int i = 0; i < kRoundsLeast || spent < kSecondsLeast; ++i) {
    const double one = plain.Time(), two = recorded.Time();
    without = std::min(without, one);
    with = std::min(with, two);
    spent += one + two;
  }
  std::printf("%-42s %-12s %10.3f ms %10.3f ms %8.3f\n", name.c_str(),
              replicas == 1 ? "one holder" : "replicas", 1e3 * without, 1e3 * with, with / without);
  std::fflush(stdout);
}

void ReportAll() {
  std::printf("%-42s %-12s %13s %13s %8s\n", "middle stage, 4 micro-batches, adamw", "held by", "without",
              "with", "ratio");
  for (const int replicas : {1, kReplicas}) {
    Report("gpt, 2 blocks, width 128, 1 x 64 tokens", Gpt(128, 4, 64, 1), replicas);
    Report("gpt, 2 blocks, width 128, 4 x 64 tokens", Gpt(128, 4, 64, 4), replicas);
    Report("gpt, 2 blocks, width 256, 4 x 128 tokens", Gpt(256, 4, 128, 4), replicas);
    Report("gpt, 2 blocks, width 512, 2 x 256 tokens", Gpt(512, 8, 256, 2), replicas);
  }
}

}  // namespace
}  // namespace weft

int main() { weft::ReportAll(); }
