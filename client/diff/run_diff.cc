#include "client/diff/run_diff.h"

#include <algorithm>
#include <map>
#include <utility>

namespace weft {
namespace {

constexpr absl::string_view kResultNames[] = {"initial weights", "activation",    "loss",
                                              "input gradient",  "gradient",      "running sum",
                                              "gradient sum",    "gradient norm", "weights"};

// Walks the values of both runs in an order in which each comes after all that it follows from.
class Differ {
 public:
  Differ(const DiffTraining& training, const RecordedHashes& a, const RecordedHashes& b)
      : training_(training), a_(a), b_(b), consumers_(training.stages) {
    for (int stage = 0; stage < training.stages; ++stage) {
      for (const int input : training.inputs[stage]) consumers_[input].push_back(stage);
    }
  }

  RunDiff Run() {
    if (a_.empty() || b_.empty()) return std::move(diff_);
    diff_.first_step = std::max(a_.first_step(), b_.first_step());
    const int end = std::min(a_.last_step(), b_.last_step()) + 1;
    diff_.steps = std::max(0, end - diff_.first_step);
    for (int step = diff_.first_step; step < end; ++step) WalkStep(step);
    return std::move(diff_);
  }

 private:
  using Results = std::vector<RunDiff::Result>;
  // True if the results differ, or may; by stage and micro-batch.
  using Tainted = std::vector<std::vector<bool>>;
  // The findings about the results of one job.
  struct Seen {
    Results differing;
    bool any_known = false;  // true if a result is recorded in both runs
  };

  Tainted Clean() const { return Tainted(training_.stages, std::vector<bool>(training_.microbatches)); }

  void WalkStep(int step) {
    forward_ = backward_ = Clean();
    for (int b = 0; b < training_.microbatches; ++b) {
      for (int stage = 0; stage < training_.stages; ++stage) WalkForward(step, stage, b);
    }
    for (int b = 0; b < training_.microbatches; ++b) {
      for (int stage = training_.stages - 1; stage >= 0; --stage) WalkBackward(step, stage, b);
    }
    std::vector<bool> sums(training_.stages);
    for (int stage = 0; stage < training_.stages; ++stage) sums[stage] = WalkSums(step, stage);
    Seen norm;
    Look(DiffedResult::kGradientNorm, a_.GradientNorm(step), b_.GradientNorm(step), &norm);
    const bool any_sum = std::find(sums.begin(), sums.end(), true) != sums.end();
    // Without a norm stages have nothing to do with each other here.
    const bool norm_tainted = norm.any_known && Judge(norm, any_sum);
    weights_[step].resize(training_.stages);
    for (int stage = 0; stage < training_.stages; ++stage) {
      Seen made;
      LookAtHolders(DiffedResult::kWeights, HashedValue::kWeights, step, stage, &made);
      weights_[step][stage] = Judge(made, sums[stage] || norm_tainted || WeightsTainted(step, stage));
    }
  }

  // Returns the weights with which a run began and that the forward read: as it read them, or as the other
  // run made them, where that began earlier.
  ValueCopies InitialWeights(const RecordedHashes& run, int step, int stage, int b) const {
    ValueCopies copies = run.OfForward(HashedValue::kInitialWeights, step, stage, b);
    if (!copies.empty()) return copies;
    return run.OfHolders(HashedValue::kWeights, VersionOf(step, stage, b) - 1, stage);
  }

  void LookAtInitialWeights(int step, int stage, int b, Seen* seen) {
    const auto began = [&](const RecordedHashes& run) {
      return !run.OfForward(HashedValue::kInitialWeights, step, stage, b).empty();
    };
    if (!began(a_) && !began(b_)) return;
    Look(DiffedResult::kInitialWeights, InitialWeights(a_, step, stage, b),
         InitialWeights(b_, step, stage, b), seen);
  }

  void WalkForward(int step, int stage, int b) {
    Seen seen;
    LookAtInitialWeights(step, stage, b, &seen);
    if (seen.differing.empty()) {  // else all else follows
      seen.any_known = false;
      Look(DiffedResult::kActivation, a_.OfForward(HashedValue::kActivation, step, stage, b),
           b_.OfForward(HashedValue::kActivation, step, stage, b), &seen);
      Look(DiffedResult::kLoss, a_.Loss(step, stage, b), b_.Loss(step, stage, b), &seen);
    }
    forward_[stage][b] = Judge(seen, InputsTainted(stage, b) || VersionTainted(step, stage, b));
  }

  void WalkBackward(int step, int stage, int b) {
    Seen seen;
    const auto look = [&](DiffedResult result, HashedValue value) {
      Look(result, a_.OfBackward(value, step, stage, b), b_.OfBackward(value, step, stage, b), &seen);
    };
    look(DiffedResult::kInputGradient, HashedValue::kInputGradient);
    look(DiffedResult::kGradient, HashedValue::kGradient);
    bool tainted = forward_[stage][b] || InputsTainted(stage, b) || VersionTainted(step, stage, b);
    for (const int consumer : consumers_[stage]) tainted = tainted || backward_[consumer][b];
    backward_[stage][b] = Judge(seen, tainted);
  }

  // Returns whether the stage's gradient sum is tainted.
  bool WalkSums(int step, int stage) {
    bool tainted = false;
    for (int b = 0; b < training_.microbatches; ++b) {
      Seen running;
      Look(DiffedResult::kRunningSum, a_.OfBackward(HashedValue::kRunningSum, step, stage, b),
           b_.OfBackward(HashedValue::kRunningSum, step, stage, b), &running);
      tainted = Judge(running, tainted || backward_[stage][b]);
    }
    Seen sum;
    LookAtHolders(DiffedResult::kGradientSum, HashedValue::kGradientSum, step, stage, &sum);
    return Judge(sum, tainted);
  }

  void LookAtHolders(DiffedResult result, HashedValue value, int step, int stage, Seen* seen) {
    Look(result, a_.OfHolders(value, step, stage), b_.OfHolders(value, step, stage), seen);
  }

  void Look(DiffedResult result, const ValueCopies& a, const ValueCopies& b, Seen* seen) {
    const ValueComparison compared = Compare(a, b);
    if (compared.result == ValueComparison::Result::kUnknown) return;
    seen->any_known = true;
    ++diff_.values;
    if (compared.result == ValueComparison::Result::kDiffers)
      seen->differing.push_back({result, compared.a, compared.b});
  }

  // `follows`: the job's results follow from tainted ones. Returns whether they are tainted themselves.
  bool Judge(const Seen& seen, bool follows) {
    if (seen.differing.empty()) return !seen.any_known && follows;
    if (follows) {
      ++diff_.following;
    } else {
      diff_.roots.push_back(RootOf(seen.differing));
    }
    return true;
  }

  RunDiff::Root RootOf(const Results& results) const {
    RunDiff::Root root{results, {}, false};
    int whole = 0;
    for (const bool in_b : {false, true}) {
      const JobHashes& job = in_b ? root.b() : root.a();
      for (const ValueHash& hash : job.hashes) {
        if (!hash.received) continue;
        const std::optional<ValueCopy> sent = (in_b ? b_ : a_).AsSent(job, hash);
        if (!sent.has_value()) continue;
        ++whole;
        if (sent->hash != hash.hash) root.transfers.push_back({in_b, hash, *sent, &job});
      }
    }
    root.arrived_whole = whole > 0 && root.transfers.empty();
    return root;
  }

  // Returns whether the weights with which a step's update begins are tainted.
  bool WeightsTainted(int step, int stage) const {
    const auto made = weights_.find(step - 1);
    return made != weights_.end() && made->second[stage];
  }
  int VersionOf(int step, int stage, int b) const {
    return std::max(0, step - training_.staleness[stage][b]);
  }
  bool VersionTainted(int step, int stage, int b) const {
    return WeightsTainted(VersionOf(step, stage, b), stage);
  }
  bool InputsTainted(int stage, int b) const {
    const std::vector<int>& inputs = training_.inputs[stage];
    return std::any_of(inputs.begin(), inputs.end(), [&](int input) { return forward_[input][b]; });
  }

  const DiffTraining& training_;
  const RecordedHashes& a_;
  const RecordedHashes& b_;
  std::vector<std::vector<int>> consumers_;
  Tainted forward_, backward_;                // of the step
  std::map<int, std::vector<bool>> weights_;  // by step of the update, and stage
  RunDiff diff_;
};

}  // namespace

absl::string_view DiffedResultName(DiffedResult result) { return kResultNames[static_cast<int>(result)]; }

RunDiff DiffRuns(const DiffTraining& training, const RecordedHashes& a, const RecordedHashes& b) {
  return Differ(training, a, b).Run();
}

}  // namespace weft
