#include "client/diff/run_diff.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/diff/diff_report.h"
#include "client/diff/recorded_hashes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace weft::run_diff_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

uint64_t Mix(std::initializer_list<uint64_t> parts) {
  uint64_t h = 0x9e3779b97f4a7c15;
  for (const uint64_t part : parts) {
    h = (h ^ part) * 0xff51afd7ed558ccd;
    h ^= h >> 32;
  }
  return h;
}

// A value that comes out wrong.
struct Fault {
  DiffedResult result = DiffedResult::kActivation;
  int step = 0, stage = 0, microbatch = -1;  // -1: of no micro-batch
};

// Way in which a run computes: the same values by other jobs.
struct Way {
  bool split_backward = false;
  enum class Holders { kOne, kReplicas, kSlices, kRelay } holders = Holders::kOne;
  int members = 1;
};

// A training whose values are numbers, each of which follows from those that the real one follows from.
class Numbers {
 public:
  Numbers(const DiffTraining& training, int steps, const Way& way, std::optional<Fault> fault)
      : training_(training), way_(way), fault_(fault), weights_(training.stages) {
    for (int s = 0; s < training.stages; ++s) weights_[s].push_back(Mix({77, static_cast<uint64_t>(s)}));
    for (int t = 0; t < steps; ++t) Step(t);
  }

  RecordedHashes hashes;

 private:
  using PerMicrobatch = std::vector<std::vector<uint64_t>>;

  uint64_t Made(DiffedResult result, int step, int stage, int b, uint64_t hash) const {
    const bool wrong = fault_.has_value() && fault_->result == result && fault_->step == step &&
                       fault_->stage == stage && fault_->microbatch == b;
    return wrong ? hash ^ uint64_t { 1 } << 40 : hash;
  }

  JobHashes Row(const Job& job) const {
    return {job, job.stage, job.stage % 2, std::nullopt, std::nullopt, {}};
  }

  void Step(int t) {
    PerMicrobatch forward(training_.stages, std::vector<uint64_t>(training_.microbatches)), back = forward;
    std::vector<uint64_t> sums(training_.stages, 5), norm_of(training_.stages);
    for (int b = 0; b < training_.microbatches; ++b) {
      for (int s = 0; s < training_.stages; ++s) forward[s][b] = Forward(t, s, b, forward);
    }
    for (int b = 0; b < training_.microbatches; ++b) {
      for (int s = training_.stages - 1; s >= 0; --s) back[s][b] = Backward(t, s, b, forward, back, &sums[s]);
    }
    uint64_t norm = 3;
    for (int s = 0; s < training_.stages; ++s) norm = Mix({norm, sums[s] = Sum(t, s, sums[s])});
    norm = Made(DiffedResult::kGradientNorm, t, 0, -1, norm);
    for (int s = 0; s < training_.stages; ++s) Update(t, s, sums[s], norm);
  }

  uint64_t WeightsOf(int t, int s, int b) const {
    return weights_[s][std::max(0, t - training_.staleness[s][b])];
  }

  uint64_t Forward(int t, int s, int b, const PerMicrobatch& forward) {
    JobHashes row = Row(Job::Compute(t, s, b, JobKind::kForward));
    uint64_t weights = WeightsOf(t, s, b);
    if (t - training_.staleness[s][b] <= 0) {
      weights = Made(DiffedResult::kInitialWeights, t, s, b, weights);
      row.hashes.push_back({HashedValue::kInitialWeights, false, 0, 0, 1, weights});
    }
    uint64_t h = Mix({1, weights, static_cast<uint64_t>(t), static_cast<uint64_t>(b)});
    for (const int input : training_.inputs[s]) h = Mix({h, forward[input][b]});
    if (s + 1 == training_.stages) {
      h = Made(DiffedResult::kLoss, t, s, b, h);
      row.loss = static_cast<double>(h >> 11);
    } else {
      h = Made(DiffedResult::kActivation, t, s, b, h);
      row.hashes.push_back({HashedValue::kActivation, false, 0, 0, 1, h});
    }
    hashes.Add(row);
    return h;
  }

  uint64_t Backward(int t, int s, int b, const PerMicrobatch& forward, const PerMicrobatch& back,
                    uint64_t* sum) {
    const JobKind first = way_.split_backward ? JobKind::kBackwardInput : JobKind::kBackward;
    JobHashes row = Row(Job::Compute(t, s, b, first));
    uint64_t h = Mix({2, forward[s][b], WeightsOf(t, s, b)});
    for (int c = 0; c < training_.stages; ++c) {
      const std::vector<int>& of = training_.inputs[c];
      if (std::find(of.begin(), of.end(), s) != of.end()) h = Mix({h, back[c][b]});
    }
    uint64_t gradient = Made(DiffedResult::kGradient, t, s, b, Mix({h, 9}));
    h = Made(DiffedResult::kInputGradient, t, s, b, h);
    const int inputs = static_cast<int>(training_.inputs[s].size());
    for (int i = 0; i < inputs; ++i) {
      row.hashes.push_back(
          {HashedValue::kInputGradient, false, 0, i, inputs, Mix({h, static_cast<uint64_t>(i)})});
    }
    if (way_.split_backward) {
      hashes.Add(row);
      row = Row(Job::Compute(t, s, b, JobKind::kBackwardWeight));
    }
    AddSlices(HashedValue::kGradient, gradient,
              way_.holders == Way::Holders::kOne || way_.holders == Way::Holders::kRelay ? 1 : way_.members,
              &row.hashes);
    *sum = Made(DiffedResult::kRunningSum, t, s, b, Mix({*sum, gradient}));
    if (way_.holders == Way::Holders::kRelay)
      row.hashes.push_back({HashedValue::kRunningSum, false, 0, 0, 1, *sum});
    hashes.Add(row);
    return h;
  }

  // Slices of a value: any numbers that add up to its own.
  static void AddSlices(HashedValue value, uint64_t whole, int parts, std::vector<ValueHash>* to) {
    uint64_t before = 0;
    for (int i = 0; i < parts; ++i) {
      const uint64_t slice = i + 1 == parts ? whole - before : static_cast<uint64_t>(i + 1) * 1000;
      to->push_back({value, false, 0, i, parts, slice});
      before += slice;
    }
  }

  uint64_t Sum(int t, int s, uint64_t sum) {
    sum = Made(DiffedResult::kGradientSum, t, s, -1, sum);
    if (way_.holders != Way::Holders::kReplicas) return sum;
    std::vector<ValueHash> slices;
    AddSlices(HashedValue::kGradientSum, sum, way_.members, &slices);
    for (int m = 0; m < way_.members; ++m) {
      JobHashes row = Row(Job::Reduce(t, s, m));
      row.hashes = {slices[m]};
      hashes.Add(row);
    }
    return sum;
  }

  void Update(int t, int s, uint64_t sum, uint64_t norm) {
    weights_[s].push_back(Made(DiffedResult::kWeights, t, s, -1, Mix({weights_[s].back(), sum, norm})));
    const bool sliced = way_.holders == Way::Holders::kSlices;
    std::vector<ValueHash> sums, made;
    AddSlices(HashedValue::kGradientSum, sum, sliced ? way_.members : 1, &sums);
    AddSlices(HashedValue::kWeights, weights_[s].back(), sliced ? way_.members : 1, &made);
    for (int m = 0; m < way_.members; ++m) {
      JobHashes row = Row(Job::Update(t, s, m));
      if (way_.holders != Way::Holders::kReplicas && (sliced || m == 0))
        row.hashes.push_back(sums[sliced ? m : 0]);
      row.hashes.push_back(made[sliced ? m : 0]);
      hashes.Add(row);
    }
    if (s > 0) return;
    JobHashes row = Row(Job::Reduce(t, 0, way_.holders == Way::Holders::kReplicas ? way_.members - 1 : 0));
    if (const JobHashes* there = hashes.Find(row.job)) row = *there;
    row.gradient_norm = static_cast<double>(norm >> 11);
    hashes.Add(row);
  }

  const DiffTraining& training_;
  const Way way_;
  const std::optional<Fault> fault_;
  std::vector<std::vector<uint64_t>> weights_;  // by stage and version
};

// Three stages, the first of which two others read.
DiffTraining Fork(int staleness) {
  return {3, 2, {{}, {0}, {0, 1}}, std::vector<std::vector<int>>(3, std::vector<int>(2, staleness))};
}

const std::vector<Way>& Ways() {
  static const std::vector<Way> ways = {{},
                                        {true, Way::Holders::kOne, 1},
                                        {false, Way::Holders::kReplicas, 3},
                                        {true, Way::Holders::kSlices, 2},
                                        {false, Way::Holders::kRelay, 2}};
  return ways;
}

std::vector<Fault> EveryFault(int steps, const DiffTraining& training, bool running_sums) {
  std::vector<Fault> faults;
  for (int t = 0; t < steps; ++t) {
    for (int s = 0; s < training.stages; ++s) {
      const bool last = s + 1 == training.stages;
      for (int b = 0; b < training.microbatches; ++b) {
        if (t == 0) faults.push_back({DiffedResult::kInitialWeights, t, s, b});
        faults.push_back({last ? DiffedResult::kLoss : DiffedResult::kActivation, t, s, b});
        if (s > 0) faults.push_back({DiffedResult::kInputGradient, t, s, b});
        faults.push_back({DiffedResult::kGradient, t, s, b});
        if (running_sums) faults.push_back({DiffedResult::kRunningSum, t, s, b});
      }
      faults.push_back({DiffedResult::kGradientSum, t, s, -1});
      faults.push_back({DiffedResult::kWeights, t, s, -1});
    }
    faults.push_back({DiffedResult::kGradientNorm, t, 0, -1});
  }
  return faults;
}

TEST(RunDiff, DiffRuns_SameTrainingInTwoWays_IsEqual) {
  for (const int staleness : {0, 1}) {
    const DiffTraining training = Fork(staleness);
    for (const Way& way : Ways()) {
      for (const Way& other : Ways()) {
        const RecordedHashes a = Numbers(training, 3, way, std::nullopt).hashes;
        const RecordedHashes b = Numbers(training, 3, other, std::nullopt).hashes;
        const RunDiff diff = DiffRuns(training, a, b);
        EXPECT_TRUE(diff.equal()) << DiffText(diff, {"a", "b"});
        EXPECT_EQ(diff.steps, 3);
        EXPECT_GT(diff.values, 3 * 3 * 2 * 2);
      }
    }
  }
}

TEST(RunDiff, DiffRuns_OneWrongValue_NamesItsJobAloneWhateverTheWay) {
  for (const int staleness : {0, 1}) {
    const DiffTraining training = Fork(staleness);
    for (const Way& way : Ways()) {
      const RecordedHashes a = Numbers(training, 3, Ways()[0], std::nullopt).hashes;
      const RecordedHashes same_way = Numbers(training, 3, way, std::nullopt).hashes;
      const bool relays = way.holders == Way::Holders::kRelay;
      for (const Fault& fault : EveryFault(3, training, relays)) {
        SCOPED_TRACE(absl::StrCat(DiffedResultName(fault.result), " of step ", fault.step, ", stage ",
                                  fault.stage, ", micro-batch ", fault.microbatch));
        const RecordedHashes b = Numbers(training, 3, way, fault).hashes;
        const RunDiff diff = DiffRuns(training, relays ? same_way : a, b);
        ASSERT_EQ(diff.roots.size(), 1u);
        const RunDiff::Root& root = diff.roots[0];
        EXPECT_EQ(root.results[0].result, fault.result);
        EXPECT_EQ(root.b().job.step, fault.step);
        EXPECT_EQ(root.b().job.stage, fault.stage);
        EXPECT_EQ(root.b().job.microbatch, fault.microbatch);
        const bool has_successor = fault.result != DiffedResult::kWeights || fault.step < 2;
        EXPECT_EQ(diff.following > 0, has_successor);
      }
    }
  }
}

TEST(RunDiff, DiffRuns_TwoWrongValues_NamesBothInCausalOrder) {
  const DiffTraining training = Fork(0);
  const RecordedHashes a = Numbers(training, 2, {}, std::nullopt).hashes;
  RecordedHashes b = Numbers(training, 2, {}, Fault{DiffedResult::kGradient, 1, 0, 1}).hashes;
  JobHashes forward = *b.Find(Job::Compute(1, 0, 0, JobKind::kForward));
  forward.hashes[0].hash ^= 1;  // and nothing follows from it
  b.Add(forward);
  const RunDiff diff = DiffRuns(training, a, b);
  ASSERT_EQ(diff.roots.size(), 2u);
  EXPECT_EQ(diff.roots[0].b().job, forward.job);
  EXPECT_EQ(diff.roots[1].b().job.kind, JobKind::kBackward);
  EXPECT_THAT(DiffText(diff, {"a", "b"}), HasSubstr("1 more job differs"));
}

TEST(RunDiff, DiffRuns_OneReplicaOfSeveral_IsNamed) {
  const DiffTraining training = Fork(0);
  const Way way{false, Way::Holders::kReplicas, 3};
  const RecordedHashes a = Numbers(training, 1, way, std::nullopt).hashes;
  RecordedHashes b = a;
  JobHashes update = *b.Find(Job::Update(0, 1, 2));
  update.hashes[0].hash ^= 1;
  update.rank = 42;
  b.Add(update);
  const RunDiff diff = DiffRuns(training, a, b);
  ASSERT_EQ(diff.roots.size(), 1u);
  EXPECT_EQ(diff.roots[0].b().job, update.job);
  EXPECT_THAT(DiffText(diff, {"first", "second"}), HasSubstr("second: update, rank 42"));
}

TEST(RunDiff, DiffRuns_AWrongVersionThatGoesFromHolderToHolder_NamesTheFirstOfThem) {
  const DiffTraining training = Fork(0);
  const Way way{false, Way::Holders::kRelay, 3};
  const RecordedHashes a = Numbers(training, 1, way, std::nullopt).hashes;
  RecordedHashes b = a;
  // The version goes from member 0 to 2, which stores it wrong, and on to 1.
  const uint64_t sound = b.Find(Job::Update(0, 1, 0))->hashes.back().hash;
  for (const int member : {1, 2}) {
    JobHashes update = *b.Find(Job::Update(0, 1, member));
    update.hashes = {{HashedValue::kWeights, false, 0, 0, 1, sound ^ 1},
                     {HashedValue::kWeights, true, 1, 0, 1, member == 1 ? sound ^ 1 : sound}};
    b.Add(update);
  }
  const RunDiff diff = DiffRuns(training, a, b);
  ASSERT_EQ(diff.roots.size(), 1u);
  EXPECT_EQ(diff.roots[0].b().job, Job::Update(0, 1, 2));
  EXPECT_TRUE(diff.roots[0].transfers.empty());
}

TEST(RunDiff, DiffRuns_ValuesNotRecorded_NamesTheFirstJobBehindThem) {
  const DiffTraining training = Fork(0);
  const auto without_activations = [](RecordedHashes hashes) {
    for (int b = 0; b < 2; ++b) {
      for (int s = 0; s < 2; ++s) {
        JobHashes job = *hashes.Find(Job::Compute(0, s, b, JobKind::kForward));
        job.hashes.clear();
        hashes.Add(job);
      }
    }
    return hashes;
  };
  const RecordedHashes a = Numbers(training, 1, {}, std::nullopt).hashes;
  const RecordedHashes b =
      without_activations(Numbers(training, 1, {}, Fault{DiffedResult::kActivation, 0, 0, 1}).hashes);
  const RunDiff diff = DiffRuns(training, a, b);
  ASSERT_EQ(diff.roots.size(), 1u);
  EXPECT_EQ(diff.roots[0].results[0].result, DiffedResult::kLoss);
  EXPECT_EQ(diff.roots[0].b().job, Job::Compute(0, 2, 1, JobKind::kForward));
}

TEST(RunDiff, DiffRuns_InputChangedOnItsWay_SaysSoInTheRunWhereItDid) {
  const DiffTraining training = Fork(0);
  const RecordedHashes a = Numbers(training, 1, {}, std::nullopt).hashes;
  RecordedHashes b = Numbers(training, 1, {}, Fault{DiffedResult::kActivation, 0, 1, 0}).hashes;
  JobHashes reader = *b.Find(Job::Compute(0, 1, 0, JobKind::kForward));
  const uint64_t sent = b.OfForward(HashedValue::kActivation, 0, 0, 0).at(0).hash;
  reader.hashes.push_back({HashedValue::kActivation, true, 0, 0, 1, sent ^ 8});
  b.Add(reader);
  const RunDiff changed = DiffRuns(training, a, b);
  ASSERT_EQ(changed.roots.size(), 1u);
  ASSERT_EQ(changed.roots[0].transfers.size(), 1u);
  EXPECT_TRUE(changed.roots[0].transfers[0].in_b);
  EXPECT_THAT(
      DiffText(changed, {"good", "bad"}, 1000),
      HasSubstr("In bad, the activation that rank 1, process 1 received is not what rank 0, process 0 sent"));
  EXPECT_EQ(DiffJson(changed, {"a", "b"})["first"]["changed_in_transfer"][0]["received_by"], 1);

  reader.hashes.back().hash = sent;
  b.Add(reader);
  const RunDiff whole = DiffRuns(training, a, b);
  EXPECT_TRUE(whole.roots[0].transfers.empty());
  EXPECT_THAT(DiffText(whole, {"good", "bad"}, 1000), HasSubstr("What it received arrived as it was sent."));
}

TEST(RunDiff, DiffRuns_OneRunBeganLater_ComparesItsWeightsWithTheUpdateThatMadeThem) {
  const DiffTraining training = Fork(0);
  const RecordedHashes a = Numbers(training, 3, {}, std::nullopt).hashes;
  RecordedHashes b;
  for (int s = 0; s < 3; ++s) {
    for (int mb = 0; mb < 2; ++mb) {
      JobHashes job = *a.Find(Job::Compute(2, s, mb, JobKind::kForward));
      const uint64_t made = a.OfHolders(HashedValue::kWeights, 1, s).at(0).hash;
      job.hashes.push_back({HashedValue::kInitialWeights, false, 2, 0, 1, s == 1 ? made + 1 : made});
      b.Add(job);
    }
  }
  const RunDiff diff = DiffRuns(training, a, b);
  ASSERT_EQ(diff.roots.size(), 2u);
  EXPECT_EQ(diff.roots[0].results[0].result, DiffedResult::kInitialWeights);
  EXPECT_EQ(diff.roots[0].b().job, Job::Compute(2, 1, 0, JobKind::kForward));
}

TEST(RecordedHashes, ForgetFrom_AStepMadeAgainByOtherJobs_LeavesNoneOfItsFormerJobs) {
  const DiffTraining training = Fork(0);
  RecordedHashes hashes = Numbers(training, 3, {true, Way::Holders::kSlices, 2}, std::nullopt).hashes;
  hashes.ForgetFrom(1);
  EXPECT_EQ(hashes.last_step(), 0);
  EXPECT_NE(hashes.Find(Job::Update(0, 2, 1)), nullptr);
}

TEST(RecordedHashes, Compare_SlicesOfAnotherNumber_AddUpOrDiffer) {
  const JobHashes job;
  const ValueCopies whole = {{0, 1, 10, &job}};
  EXPECT_EQ(Compare(whole, {{0, 2, 3, &job}, {1, 2, 7, &job}}).result, ValueComparison::Result::kEqual);
  EXPECT_EQ(Compare(whole, {{0, 2, 3, &job}, {1, 2, 8, &job}}).result, ValueComparison::Result::kDiffers);
  EXPECT_EQ(Compare(whole, {{0, 2, 3, &job}}).result, ValueComparison::Result::kUnknown)
      << "a slice is missing";
  const ValueComparison slices = Compare({{0, 2, 3, &job}, {1, 2, 7, &job}}, {{1, 2, 6, &job}});
  EXPECT_EQ(slices.result, ValueComparison::Result::kDiffers);
  EXPECT_EQ(slices.a.part, 1);
}

TEST(DiffReport, DiffText_SlicesAgainstTheWhole_NamesNoRank) {
  const DiffTraining training = Fork(0);
  const RecordedHashes a = Numbers(training, 1, {}, std::nullopt).hashes;
  const RecordedHashes b =
      Numbers(training, 1, {false, Way::Holders::kReplicas, 3}, Fault{DiffedResult::kGradientSum, 0, 1, -1})
          .hashes;
  const RunDiff diff = DiffRuns(training, a, b);
  const std::string text = DiffText(diff, {"whole", "sliced"});
  EXPECT_THAT(text, HasSubstr("gradient sum (one of 3 slices)"));
  EXPECT_THAT(text, HasSubstr("sliced: reduce, in 3 slices, on as many ranks"));
  EXPECT_FALSE(DiffJson(diff, {"a", "b"})["first"]["b"].contains("rank"));
}

TEST(DiffReport, DiffText_Equal_SaysHowMuchWasCompared) {
  const DiffTraining training = Fork(0);
  const RecordedHashes a = Numbers(training, 2, {}, std::nullopt).hashes;
  const std::string text = DiffText(DiffRuns(training, a, a), {"a", "b"});
  EXPECT_THAT(text, HasSubstr("values of steps 0 to 1 have the same hashes in both runs"));
  EXPECT_THAT(text, Not(HasSubstr("differ")));
}

}  // namespace
}  // namespace weft::run_diff_test
