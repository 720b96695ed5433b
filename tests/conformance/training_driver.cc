#include "tests/conformance/training_driver.h"

#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/model_layers.h"
#include "run/run_schedule.h"
#include "run/stage_cut.h"
#include "worker/shell/checkpoint/safetensors.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/reference/reference.h"

namespace weft::testing {
namespace {

// The stages that each stage reads.
std::vector<std::vector<int>> InputsOf(const RunSpec& run) {
  std::vector<std::vector<int>> inputs = StageInputs(CountLayers(run.model), run.layers_of_stage);
  if (!inputs.empty()) return inputs;
  inputs.resize(run.stages());
  for (int s = 1; s < run.stages(); ++s) inputs[s] = {s - 1};
  return inputs;
}

// Returns -1 for a value that is not a number, so that it is equal to itself.
double Comparable(double x) { return std::isnan(x) ? -1 : x; }

class Driver {
 public:
  Driver(Device& device, const RunSpec& run, const Arrangement& arrangement)
      : run_(run),
        arrangement_(arrangement),
        stages_(run.stages()),
        microbatches_(run.train.microbatches),
        scheme_(run.schedule.name.empty() ? Schedule() : Require(ScheduleOf(run)).scheme),
        inputs_of_(InputsOf(run)) {
    if (arrangement_.backward_order.empty()) {
      arrangement_.backward_order.resize(microbatches_);
      std::iota(arrangement_.backward_order.begin(), arrangement_.backward_order.end(), 0);
    }
    const int ranks = arrangement_.kind == Kind::kPipeline         ? stages_
                      : arrangement_.kind == Kind::kReplicas       ? microbatches_
                      : arrangement_.kind == Kind::kRelayed        ? microbatches_
                      : arrangement_.kind == Kind::kSlices         ? microbatches_
                      : arrangement_.kind == Kind::kFetched        ? 2
                      : arrangement_.kind == Kind::kRemoteBackward ? 2
                                                                   : 1;
    const ScheduledRun scheduled = Require(ScheduledRun::Make(run));
    for (int r = 0; r < ranks; ++r) ranks_.push_back(Require(device.CreateRank(scheduled, r, memory_)));
    for (int r = 0; r < ranks; ++r) {
      for (int s = 0; s < stages_; ++s) {
        if (arrangement_.kind == Kind::kPipeline && r != s) continue;
        if (arrangement_.kind == Kind::kSlices) {
          Require(ranks_[r]->AddStage(s, StageRole::Slice(r, ranks)));
          continue;
        }
        if (arrangement_.kind == Kind::kRelayed && r + 1 < ranks) {
          Require(ranks_[r]->AddStage(s, StageRole::Installed()));
          continue;
        }
        const bool holds = !hands_out() || arrangement_.kind == Kind::kReplicas ||
                           arrangement_.kind == Kind::kRelayed || r == 0;
        Require(ranks_[r]->AddStage(s, holds ? StageRole::Whole() : StageRole::Nothing()));
      }
    }
  }

  Outcome Run() {
    Outcome outcome;
    if (run_.first_step() == 0) outcome.initial = Save("checkpoint-0");
    for (int t = run_.first_step(); t < run_.end_step(); ++t) {
      outcome.losses.push_back(
          Comparable((arrangement_.overlapped ? RunOverlapped(t) : RunInTurn(t)) / microbatches_));
      const Tensor norm = UpdateAll(t);
      if (takes_norm()) outcome.norms.push_back(Comparable(Require(SumOfSquares::FromTensor(norm)).Norm()));
    }
    outcome.trained = Save("checkpoint");
    return outcome;
  }
  std::string checkpoint() const { return absl::StrCat(folder_.path(), "/checkpoint"); }

 private:
  using Kind = Arrangement::Kind;

  double RunInTurn(int t) {
    double loss = 0;
    for (int b = 0; b < microbatches_; ++b) loss += Forward(t, b);
    for (int b : arrangement_.backward_order) Backward(t, b);
    return loss;
  }

  double RunOverlapped(int t) {
    double loss = Forward(t, 0);
    for (int b = 1; b < microbatches_; ++b) {
      std::thread backward([this, t, b] { Backward(t, b - 1); });
      loss += Forward(t, b);
      backward.join();
    }
    Backward(t, microbatches_ - 1);
    return loss;
  }

  int ComputeRank(int stage, int microbatch, bool backward = false) const {
    switch (arrangement_.kind) {
      case Kind::kRemoteBackward:
        return backward ? 1 : 0;
      case Kind::kPipeline:
        return stage;
      case Kind::kReplicas:
      case Kind::kRelayed:
      case Kind::kSlices:
        return microbatch;
      case Kind::kFetched:
        return 1;
      case Kind::kOneRank:
        return 0;
    }
    return 0;
  }
  bool hands_out() const {
    return arrangement_.kind == Kind::kReplicas || arrangement_.kind == Kind::kRelayed ||
           arrangement_.kind == Kind::kFetched || arrangement_.kind == Kind::kRemoteBackward ||
           arrangement_.kind == Kind::kSlices;
  }
  int VersionOf(int t, int stage, int b) const { return std::max(0, t - scheme_.StalenessOf(stage, b)); }
  Tensor FetchWeights(int t, int stage, int b, bool backward = false) {
    if (arrangement_.kind == Kind::kSlices) return GatherWeights(stage, b, VersionOf(t, stage, b));
    const bool fetches =
        arrangement_.kind == Kind::kFetched || (arrangement_.kind == Kind::kRemoteBackward && backward);
    return fetches ? CopyOf(Require(ranks_[0]->Weights(stage, VersionOf(t, stage, b)))) : Tensor{};
  }
  Tensor GatherWeights(int stage, int rank, int version) {
    std::vector<Tensor> slices(ranks_.size());
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
      if (r != rank) slices[r] = CopyOf(Require(ranks_[r]->Weights(stage, version)));
    }
    const Job job = Job::Compute(0, stage, rank, JobKind::kForward);
    Tensor whole = Require(ranks_[rank]->GatherWeights(job, slices, version));
    for (const Tensor& slice : slices) {
      if (!slice.empty()) Poison(slice);
    }
    return whole;
  }
  static Tensor Deliver(const Tensor& tensor) { return tensor.empty() ? Tensor{} : CopyOf(tensor); }

  double Forward(int t, int b) {
    std::vector<Tensor> outputs(stages_);
    double loss = 0;
    for (int s = 0; s < stages_; ++s) {
      Tensor weights = FetchWeights(t, s, b);
      const int version = VersionOf(t, s, b);
      const Job job = Job::Compute(t, s, b, JobKind::kForward);
      std::vector<Tensor> inputs;
      for (const int from : inputs_of_[s]) inputs.push_back(Deliver(outputs[from]));
      if (arrangement_.kind == Kind::kRemoteBackward) {
        for (const Tensor& input : inputs) inputs_[{s, b}].push_back(Deliver(input));
      }
      RankCompute& rank = *ranks_[ComputeRank(s, b)];
      ForwardResult result = Require(arrangement_.kind == Kind::kRemoteBackward
                                         ? rank.ForwardOnly(job, std::move(inputs), weights, version)
                                         : rank.Forward(job, std::move(inputs), weights, version));
      if (!weights.empty()) Poison(weights);
      outputs[s] = result.activation;
      if (result.loss.has_value()) loss = *result.loss;
    }
    return loss;
  }

  void Backward(int t, int b) {
    std::vector<std::vector<Tensor>> gradients(stages_);  // of each stage's output, by its consumers
    for (int s = stages_ - 1; s >= 0; --s) {
      RankCompute& rank = *ranks_[ComputeRank(s, b, /*backward=*/true)];
      const int version = VersionOf(t, s, b);
      BackwardResult result;
      if (arrangement_.kind == Kind::kRemoteBackward) {
        const JobKind kind = arrangement_.split_backward ? JobKind::kBackwardInput : JobKind::kBackward;
        Require(rank.TakePass(Job::Compute(t, s, b, kind), std::move(inputs_[{s, b}])));
      }
      std::vector<Tensor> g = std::move(gradients[s]);
      if (arrangement_.split_backward) {
        Tensor weights = FetchWeights(t, s, b, /*backward=*/true);
        result = Require(
            rank.Backward(Job::Compute(t, s, b, JobKind::kBackwardInput), g, weights, version, hands_out()));
        EXPECT_TRUE(result.gradient.empty());
        if (!weights.empty()) Poison(weights);
        g.clear();
        BackwardResult second = Require(rank.Backward(Job::Compute(t, s, b, JobKind::kBackwardWeight), {},
                                                      FetchWeights(t, s, b, true), version, hands_out()));
        result.gradient = second.gradient;
      } else {
        result = Require(rank.Backward(Job::Compute(t, s, b, JobKind::kBackward), g,
                                       FetchWeights(t, s, b, true), version, hands_out()));
      }
      EXPECT_EQ(result.input_gradients.size(), inputs_of_[s].size());
      EXPECT_EQ(result.gradient.empty(), !hands_out());
      if (hands_out()) gradients_[s][b] = result.gradient;
      for (size_t i = 0; i < inputs_of_[s].size(); ++i) {
        // Later consumers come first here, and stand behind.
        std::vector<Tensor>& of_input = gradients[inputs_of_[s][i]];
        of_input.insert(of_input.begin(), Deliver(result.input_gradients.at(i)));
      }
    }
  }

  bool takes_norm() const { return run_.train.takes_norm(); }
  int Members() const {
    return arrangement_.kind == Kind::kSlices || arrangement_.kind == Kind::kReplicas ? microbatches_ : 1;
  }
  // Returns the rank that holds the stage's weights as this member.
  RankCompute& MemberRank(int s, int member) { return *ranks_[hands_out() ? member : ComputeRank(s, 0)]; }

  // Returns the sum of squares of all gradients, where the run clips them.
  Tensor UpdateAll(int t) {
    std::vector<std::vector<Tensor>> sums;
    Tensor norm;
    for (int s = 0; s < stages_; ++s) sums.push_back(Reduce(t, s, &norm));
    for (int s = 0; s < stages_; ++s) {
      if (arrangement_.kind == Kind::kRelayed) Relay(t, s, sums[s], norm);
      for (int m = 0; arrangement_.kind != Kind::kRelayed && m < Members(); ++m) {
        const bool sliced = arrangement_.kind == Kind::kSlices;
        UpdateOn(MemberRank(s, m), Job::Update(t, s, m), sliced ? std::vector<Tensor>{sums[s][m]} : sums[s],
                 norm);
      }
    }
    return norm;
  }

  // The parts of the stage's sum, none if each rank may as well take its own; `norm` goes on with their
  // squares.
  std::vector<Tensor> Reduce(int t, int s, Tensor* norm) {
    std::vector<Tensor> sums;
    if (!hands_out() && !takes_norm()) return sums;
    const auto others = [norm] { return norm->empty() ? std::vector<Tensor>() : One(*norm); };
    if (arrangement_.kind == Kind::kRelayed) {
      const int home = microbatches_ - 1;
      sums.push_back(RunningSum(t, s));
      if (takes_norm())
        *norm = Require(ranks_[home]->SumSquares(Job::Reduce(t, s, home), sums[0], 0, 1, others()));
      return sums;
    }
    for (int m = 0; m < Members(); ++m) {
      const Job job = Job::Reduce(t, s, m);
      RankCompute& rank = MemberRank(s, m);
      for (int b = 0; hands_out() && b < microbatches_; ++b) {
        Require(rank.Accumulate(job, b, Slice(gradients_[s][b], m, Members()), m, Members()));
      }
      sums.push_back(CopyOf(Require(rank.TakeSum(job, m, Members()))));
      if (takes_norm()) *norm = Require(rank.SumSquares(job, sums.back(), m, Members(), others()));
    }
    if (hands_out()) gradients_[s].clear();
    return sums;
  }

  // Keeps the versions that the next steps read, and drops the others.
  void UpdateOn(RankCompute& rank, const Job& job, const std::vector<Tensor>& sums, const Tensor& norm) {
    Require(rank.Update(job, sums, norm, scheme_.MaxStaleness(job.stage) > 0));
    DropUnread(rank, job);
  }
  void DropUnread(RankCompute& rank, const Job& job) {
    const int most = scheme_.MaxStaleness(job.stage);
    if (most > 0 && job.step >= most) rank.DropWeights(job.stage, job.step - most);
  }

  // Returns the running sum. A tensor from another rank is gone when the job that took it has ended.
  Tensor RunningSum(int t, int s) {
    const JobKind kind = arrangement_.split_backward ? JobKind::kBackwardWeight : JobKind::kBackward;
    Tensor sum = gradients_[s][0];
    for (int b = 1; b < microbatches_; ++b) {
      const Tensor before = CopyOf(sum);
      sum = Require(ranks_[b]->AddToSum(Job::Compute(t, s, b, kind), before, gradients_[s][b]));
      Poison(before);
    }
    gradients_[s].clear();
    return sum;
  }

  void Relay(int t, int s, const std::vector<Tensor>& sums, const Tensor& norm) {
    const int home = microbatches_ - 1;
    UpdateOn(*ranks_[home], Job::Update(t, s, home), sums, norm);
    for (int m = 0; m < home; ++m) {
      const int from = m == 0 ? home : m - 1;
      const Tensor made = CopyOf(Require(ranks_[from]->Weights(s, t + 1)));
      const Job job = Job::Update(t, s, m);
      EXPECT_FALSE(ranks_[m]->Update(job, sums, norm, false).ok()) << "an adopted stage was updated";
      Require(ranks_[m]->InstallWeights(job, made, scheme_.MaxStaleness(s) > 0));
      DropUnread(*ranks_[m], job);
      Poison(made);
    }
  }

  // All hold what the last one made, and none of the others can save it.
  void ExpectInstalled(int s) {
    const Tensor made = Require(ranks_.back()->Weights(s, run_.end_step()));
    for (size_t r = 0; r + 1 < ranks_.size(); ++r) {
      const Tensor held = Require(ranks_[r]->Weights(s, run_.end_step()));
      ASSERT_EQ(held.bytes, made.bytes);
      EXPECT_EQ(std::memcmp(held.data, made.data, made.bytes), 0) << "stage " << s << " on rank " << r;
      EXPECT_FALSE(ranks_[r]->Save(s, folder_.path() + "/adopted").ok());
    }
  }

  std::map<std::string, std::vector<uint8_t>> Save(const std::string& name) {
    const std::string folder = absl::StrCat(folder_.path(), "/", name);
    for (int s = 0; s < stages_; ++s) {
      // The saving rank, among ranks that relay the weights, is the one that makes them.
      const int rank = arrangement_.kind == Kind::kPipeline  ? s
                       : arrangement_.kind == Kind::kRelayed ? microbatches_ - 1
                                                             : 0;
      if (arrangement_.kind == Kind::kRelayed && name == "checkpoint") ExpectInstalled(s);
      Require(ranks_[rank]->Save(s, folder));
      // They save in any order; the last to come joins them.
      for (size_t r = 1; arrangement_.kind == Kind::kSlices && r < ranks_.size(); ++r)
        Require(ranks_[r]->Save(s, folder));
    }
    Require(WriteCheckpointIndex(folder, run_));
    return ReadCheckpoint(folder);
  }

  const RunSpec run_;
  Arrangement arrangement_;
  const int stages_, microbatches_;
  const Schedule scheme_;
  const std::vector<std::vector<int>> inputs_of_;  // stages that each stage reads
  PlainMemory memory_;
  TestFolder folder_;
  std::vector<std::unique_ptr<RankCompute>> ranks_;
  std::map<int, std::map<int, Tensor>> gradients_;
  std::map<std::pair<int, int>, std::vector<Tensor>>
      inputs_;  // of stages, by stage and micro-batch, for kRemoteBackward
};

}  // namespace

std::vector<Tensor> One(Tensor tensor) {
  std::vector<Tensor> one;
  if (!tensor.empty()) one.push_back(std::move(tensor));
  return one;
}

void Poison(const Tensor& tensor) {
  float* values = static_cast<float*>(tensor.data);
  std::fill(values, values + tensor.bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
}

Tensor CopyOf(const Tensor& tensor) {
  constexpr size_t kAlign = 64;
  void* data = std::aligned_alloc(kAlign, (tensor.bytes + kAlign) / kAlign * kAlign);
  std::memcpy(data, tensor.data, tensor.bytes);
  return {tensor.shape, data, tensor.bytes, std::shared_ptr<void>(data, &std::free)};
}

std::map<std::string, std::vector<uint8_t>> ReadCheckpoint(const std::string& folder) {
  std::ifstream in(absl::StrCat(folder, "/model.safetensors.index.json"));
  const nlohmann::json index = nlohmann::json::parse(in);
  std::map<std::string, SafetensorsFile> files;
  std::map<std::string, std::vector<uint8_t>> tensors;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string path = absl::StrCat(folder, "/", file.get<std::string>());
    if (files.count(path) == 0) files[path] = Require(ReadSafetensors(path));
    const SafetensorsFile& content = files[path];
    const SafetensorsEntry* entry = content.header.Find(name);
    if (entry == nullptr) std::abort();
    tensors[name].assign(content.data.begin() + entry->begin, content.data.begin() + entry->end);
  }
  for (const auto& file : index["metadata"].value("state", nlohmann::json::array())) {
    const SafetensorsFile content =
        Require(ReadSafetensors(absl::StrCat(folder, "/", file.get<std::string>())));
    for (const SafetensorsEntry& entry : content.header.entries)
      tensors[entry.name].assign(content.data.begin() + entry.begin, content.data.begin() + entry.end);
  }
  return tensors;
}

Outcome Reference(const RunSpec& run, DeviceBackend* backend) {
  TestFolder folder;
  Outcome outcome;
  const auto add = [&](const ReferenceStep& step) {
    outcome.losses.push_back(Comparable(step.loss));
    if (step.gradient_norm.has_value()) outcome.norms.push_back(Comparable(*step.gradient_norm));
    outcome.skipped += step.skipped;
    return true;
  };
  Require(RunReference(run, folder.path(), add, backend));
  if (run.first_step() == 0) outcome.initial = ReadCheckpoint(absl::StrCat(folder.path(), "/checkpoint-0"));
  outcome.trained = ReadCheckpoint(absl::StrCat(folder.path(), "/checkpoint"));
  return outcome;
}

Outcome Train(Device& device, const RunSpec& run, const Arrangement& arrangement) {
  return Driver(device, run, arrangement).Run();
}

Outcome TrainInTwo(Device& device, const RunSpec& run, int stop, const Arrangement& first,
                   const Arrangement& second) {
  RunSpec part = run;
  part.until = stop;
  Driver stopped(device, part, first);
  Outcome outcome = stopped.Run();
  part.until = 0;
  part.resume = {stopped.checkpoint(), stop};
  Outcome rest = Driver(device, part, second).Run();
  outcome.losses.insert(outcome.losses.end(), rest.losses.begin(), rest.losses.end());
  outcome.norms.insert(outcome.norms.end(), rest.norms.begin(), rest.norms.end());
  outcome.trained = std::move(rest.trained);
  return outcome;
}

}  // namespace weft::testing
