#include "worker/core/tensor_wants.h"

#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::tensor_wants_test {
namespace {

constexpr uint64_t kRun = 7, kEpoch = 3;

// One process that has only the first rank of a run.
Assign AssignOf(int ranks) {
  Assign assign;
  assign.run = kRun;
  assign.epoch = kEpoch;
  assign.leases = {{0, {kEpoch, 1}}};
  for (int r = 0; r < ranks; ++r) assign.process_of_rank.push_back(r);
  return assign;
}

class Process {
 public:
  Process(const std::string& family, int stages, int microbatches)
      : Process(*MakeSchedule(family, {}, stages, microbatches)) {}
  explicit Process(const Schedule& schedule)
      : run_(AssignOf(schedule.ranks), {WithoutTerms(schedule), /*steps=*/1}), wants_(run_) {}

  // Claims jobs of the rank, or ends one; returns the keys that are wanted by it.
  std::vector<TensorKey> Claim(const Job& job) {
    return Keys([&](WorkerEffects* out) { wants_.Claim(1, 0, job, /*room=*/true, out); });
  }
  std::vector<TensorKey> ClaimWithoutRoom(const Job& job) {
    return Keys([&](WorkerEffects* out) { wants_.Claim(1, 0, job, /*room=*/false, out); });
  }
  std::vector<TensorKey> ClaimRest(const Job& job) {
    return Keys([&](WorkerEffects* out) { wants_.ClaimRest(1, job, out); });
  }
  std::vector<TensorKey> End(const Job& job) {
    return Keys([&](WorkerEffects* out) { wants_.Ended(2, 0, job, out); });
  }
  TensorWants& wants() { return wants_; }
  const LocalRun& run() const { return run_; }

 private:
  template <typename Do>
  static std::vector<TensorKey> Keys(Do act) {
    WorkerEffects out;
    act(&out);
    std::vector<TensorKey> keys;
    for (const WorkerEffect& effect : out) keys.push_back(std::get<WantEffect>(effect).key);
    return keys;
  }

  LocalRun run_;
  TensorWants wants_;
};

TEST(TensorWants, InputOfAnotherProcess_IsMatchedOnceToItsJob) {
  Process process("gpipe", /*stages=*/2, /*microbatches=*/2);
  const Job backward = Job::Compute(0, 0, 1, JobKind::kBackward);
  const std::vector<TensorKey> wanted = process.Claim(backward);
  ASSERT_EQ(wanted.size(), 1u) << "the forward's activation is at hand";
  EXPECT_EQ(wanted[0].kind, TensorKind::kInputGradient);
  const std::optional<TensorWants::Want> want = process.wants().Take(wanted[0]);
  ASSERT_TRUE(want.has_value());
  EXPECT_EQ(want->job, process.run().IdOf(backward));
  EXPECT_EQ(want->microbatch, 1);
  EXPECT_EQ(want->since, 1);
  EXPECT_FALSE(process.wants().Take(wanted[0]).has_value());
}

TEST(TensorWants, KeyOfNoWant_MatchesNothing) {
  Process process("gpipe", 2, 2);
  EXPECT_FALSE(process.wants().Take(TensorKey{}).has_value());
}

TEST(TensorWants, ShardedWeights_AreWantedForTwoJobsAtATime) {
  Process process("fsdp", /*stages=*/4, /*microbatches=*/4);
  std::vector<Job> jobs;
  for (int s = 1; s < 4; ++s) jobs.push_back(Job::Compute(0, s, 0, JobKind::kForward));
  const auto weights = [](const std::vector<TensorKey>& keys) {
    std::vector<int> stages;
    for (const TensorKey& key : keys) {
      if (key.kind == TensorKind::kWeights) stages.push_back(key.stage);
    }
    return stages;
  };
  EXPECT_EQ(weights(process.Claim(jobs[0])), std::vector<int>{1});
  EXPECT_EQ(weights(process.Claim(jobs[1])), std::vector<int>{2});
  EXPECT_EQ(weights(process.Claim(jobs[2])), std::vector<int>());
  EXPECT_EQ(weights(process.End(jobs[0])), std::vector<int>{3}) << "its turn has come";
  EXPECT_EQ(weights(process.End(jobs[1])), std::vector<int>());
}

// The weights keep their turn; what the budget counts waits for its room.
TEST(TensorWants, InputsWithoutRoom_AreWantedWhenThereIs) {
  Process process(*MakeSchedule("custom", {{"workers", "2"}, {"compute", "1 - s"}, {"weights", "1"}},
                                /*stages=*/2, /*microbatches=*/1));
  const Job forward = Job::Compute(0, 1, 0, JobKind::kForward);
  const std::vector<TensorKey> weights = process.ClaimWithoutRoom(forward);
  ASSERT_EQ(weights.size(), 1u);
  EXPECT_EQ(weights[0].kind, TensorKind::kWeights);
  const std::vector<TensorKey> inputs = process.ClaimRest(forward);
  ASSERT_EQ(inputs.size(), 1u);
  EXPECT_EQ(inputs[0].kind, TensorKind::kActivation);
  EXPECT_TRUE(process.wants().Take(inputs[0]).has_value());
}

// Micro-batches 0 and 2 pass the rank on stage 1, whose weights another rank holds.
TEST(TensorWants, WeightsThatAreKept_AreWantedByTheFirstOfTheirJobs) {
  Process process(
      *MakeSchedule("fslpp", {{"groups", "2"}, {"ranks", "1"}}, /*stages=*/2, /*microbatches=*/4));
  const auto weights = [&](int microbatch, JobKind kind) {
    int wanted = 0;
    for (const TensorKey& key : process.Claim(Job::Compute(0, 1, microbatch, kind)))
      wanted += key.kind == TensorKind::kWeights;
    return wanted;
  };
  EXPECT_EQ(weights(0, JobKind::kForward), 1);
  EXPECT_EQ(weights(2, JobKind::kForward), 0);
  EXPECT_EQ(weights(0, JobKind::kBackward), 1) << "a backward fetches anew";
  EXPECT_EQ(weights(2, JobKind::kBackward), 0);
}

}  // namespace
}  // namespace weft::tensor_wants_test
