// Tests how a process's groups of collectives come together and end, with collectives of the test.
#include "worker/shell/loop/communicators.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/second.h"

namespace weft::communicators_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HandFence final : public Fence {
 public:
  absl::StatusOr<bool> Reached() override { return answer; }
  absl::StatusOr<bool> answer = false;
};

struct Member {
  std::string id;
  int64_t until = 0;
  absl::StatusOr<bool> joined = false;
  std::vector<std::shared_ptr<HandFence>> sums, scatters, gathers;
  std::vector<int64_t> slices;  // of the last scatter or gather
  absl::Status aborted;
};

class HandCommunicator final : public Communicator {
 public:
  explicit HandCommunicator(Member* member) : member_(member) {}
  absl::StatusOr<bool> Joined() override { return member_->joined; }
  absl::StatusOr<std::shared_ptr<Fence>> AllReduce(const Tensor&, const Tensor&) override {
    return member_->sums.emplace_back(std::make_shared<HandFence>());
  }
  absl::StatusOr<std::shared_ptr<Fence>> AllGather(const Tensor&, const Tensor&,
                                                   const std::vector<int64_t>& slices) override {
    member_->slices = slices;
    return member_->gathers.emplace_back(std::make_shared<HandFence>());
  }
  absl::StatusOr<std::shared_ptr<Fence>> ReduceScatter(const Tensor&, const Tensor&,
                                                       const std::vector<int64_t>& slices) override {
    member_->slices = slices;
    return member_->scatters.emplace_back(std::make_shared<HandFence>());
  }
  void Abort(const absl::Status& cause) override { member_->aborted = cause; }

 private:
  Member* const member_;
};

class HandLibrary final : public CommunicationLibrary {
 public:
  const std::string& name() const override { return name_; }
  absl::StatusOr<std::string> NewGroupId() override { return "id " + std::to_string(next_id++); }
  absl::StatusOr<std::unique_ptr<Communicator>> Join(const std::string& id, const std::vector<Rank>&, int,
                                                     int64_t until, int64_t) override {
    members.push_back(std::make_unique<Member>());
    members.back()->id = id;
    members.back()->until = until;
    return std::make_unique<HandCommunicator>(members.back().get());
  }

  int next_id = 1;
  std::vector<std::unique_ptr<Member>> members;  // in the order in which they began to join

 private:
  const std::string name_ = "hand 1";
};

Tensor Flat(std::vector<float> values) {
  auto kept = std::make_shared<std::vector<float>>(std::move(values));
  Tensor t;
  t.data = kept->data();
  t.bytes = kept->size() * sizeof(float);
  t.owner = kept;
  return t;
}

constexpr int64_t kNow = 5 * kSecond;

class CommunicatorsTest : public ::testing::Test {
 protected:
  // Rank 1 makes the id of the second of its two groups.
  absl::StatusOr<std::vector<std::pair<int, std::string>>> Begin() {
    return groups_.Begin(&device_, {{0, 1, {0, 1}, 1}, {3, 1, {1, 2}, 0}}, kSecond, {kSecond, kSecond});
  }
  void JoinAll() {
    ASSERT_TRUE(Begin().ok());
    groups_.TakeId(0, "theirs");
    for (size_t g = 0; g < 2; ++g) {
      ASSERT_EQ(*groups_.JoinNext(kSecond), false);
      ASSERT_EQ(device_.members.size(), g + 1);
      device_.members[g]->joined = true;
    }
    ASSERT_EQ(*groups_.JoinNext(kSecond), true);
  }

  HandLibrary device_;
  Communicators groups_;
};

TEST_F(CommunicatorsTest, Begin_MakesTheIdsOfItsOwnGroupsAlone) {
  const auto made = Begin();
  ASSERT_TRUE(made.ok());
  EXPECT_THAT(*made, ElementsAre(std::pair<int, std::string>(3, "id 1")));
}

TEST_F(CommunicatorsTest, Begin_DeviceWithoutCollectives_IsRefused) {
  EXPECT_EQ(groups_.Begin(nullptr, {{0, 1, {0, 1}, 1}}, 0, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(groups_.Begin(nullptr, {}, 0, {}).ok());
  EXPECT_EQ(*groups_.JoinNext(0), true);
  EXPECT_FALSE(groups_.busy());
}

TEST_F(CommunicatorsTest, Join_OneGroupAfterTheOtherEachOnceItsIdIsHere) {
  ASSERT_TRUE(Begin().ok());
  EXPECT_EQ(*groups_.JoinNext(kSecond), false);
  EXPECT_THAT(device_.members, IsEmpty()) << "the second has its id, but the first comes first";
  EXPECT_FALSE(groups_.busy()) << "the id is news that somebody tells";
  groups_.TakeId(3, "an id for who makes it");
  groups_.TakeId(0, "theirs");
  EXPECT_EQ(*groups_.JoinNext(kSecond), false);
  ASSERT_EQ(device_.members.size(), 1u);
  EXPECT_TRUE(groups_.busy());
  EXPECT_EQ(device_.members[0]->id, "theirs");
  device_.members[0]->joined = true;
  EXPECT_EQ(*groups_.JoinNext(kSecond), false);
  ASSERT_EQ(device_.members.size(), 2u);
  EXPECT_EQ(device_.members[1]->id, "id 1");
  device_.members[1]->joined = true;
  EXPECT_EQ(*groups_.JoinNext(kSecond), true);
  EXPECT_FALSE(groups_.busy());
}

TEST_F(CommunicatorsTest, Join_NoIdComes_IsDeadlineExceededThatNamesWhoWasToMakeIt) {
  ASSERT_TRUE(Begin().ok());
  EXPECT_EQ(*groups_.JoinNext(2 * kSecond - 1), false);
  const absl::Status status = groups_.JoinNext(2 * kSecond).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 1 had 1 s from the run's beginning"), HasSubstr("rank 0 was to make")));
}

// A member that has prepared sooner than the others does not give them less time for it.
TEST_F(CommunicatorsTest, Join_HasUntilTheSameMomentWhoeverIsPreparedFirst) {
  for (const int64_t prepared : {kSecond, 2 * kSecond - 1}) {
    device_.members.clear();
    ASSERT_TRUE(Begin().ok());
    groups_.TakeId(0, "theirs");
    ASSERT_EQ(*groups_.JoinNext(prepared), false);
    ASSERT_EQ(device_.members.size(), 1u);
    EXPECT_EQ(device_.members[0]->until, 2 * kSecond);
    groups_.Clear(absl::OkStatus());
  }
}

TEST_F(CommunicatorsTest, Join_PreparedTooLate_SaysSo) {
  ASSERT_TRUE(Begin().ok());
  groups_.TakeId(0, "theirs");
  const absl::Status status = groups_.JoinNext(2 * kSecond).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it prepared itself"));
  EXPECT_THAT(device_.members, IsEmpty());
}

TEST_F(CommunicatorsTest, Running_NamesTheFirstOfEachRankWithTheTimeSinceItWaitsForNoJob) {
  JoinAll();
  EXPECT_THAT(groups_.Running(kNow, 0), IsEmpty());
  const Job first = Job::Reduce(4, 2, 1), second = Job::Reduce(4, 1, 1);
  ASSERT_TRUE(groups_.Start(kNow, 0, 1, first, Operation::kAllReduce, Flat({1, 2, 3, 4})).ok());
  ASSERT_TRUE(groups_.Start(kNow + 1, 0, 1, second, Operation::kAllReduce, Flat({1, 2})).ok());
  // Two members each send half of the 16 bytes, twice.
  EXPECT_THAT(groups_.Running(kNow + kSecond, 0), ElementsAre(RunningJointOperation{1, first, kSecond, 16}));
  EXPECT_THAT(groups_.Running(kNow + kSecond, kNow + 5),
              ElementsAre(RunningJointOperation{1, first, kSecond - 5, 16}));
  device_.members[0]->sums[0]->answer = true;
  std::vector<Communicators::Done> done;
  ASSERT_TRUE(groups_.Poll(&done).ok());
  EXPECT_THAT(groups_.Running(kNow + kSecond, 0),
              ElementsAre(RunningJointOperation{1, second, kSecond - 1, 8}));
}

TEST_F(CommunicatorsTest, Reduce_Over_GivesTheResultOnce) {
  JoinAll();
  const Job reduce = Job::Reduce(4, 2, 1);
  ASSERT_TRUE(groups_.Start(kNow, 0, 1, reduce, Operation::kAllReduce, Flat({1, 2})).ok());
  EXPECT_TRUE(groups_.busy());
  std::vector<Communicators::Done> done;
  ASSERT_TRUE(groups_.Poll(&done).ok());
  EXPECT_THAT(done, IsEmpty());
  device_.members[0]->sums[0]->answer = true;
  ASSERT_TRUE(groups_.Poll(&done).ok());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].job, reduce);
  EXPECT_EQ(done[0].rank, 1);
  EXPECT_EQ(groups_.TakeResult(reduce).bytes, 8u);
  EXPECT_TRUE(groups_.TakeResult(reduce).empty());
  EXPECT_FALSE(groups_.busy());
}

TEST_F(CommunicatorsTest, Reduce_ThatScatters_GivesTheMembersSliceInItsPlace) {
  JoinAll();
  const Job reduce = Job::Reduce(4, 2, 1);
  const Tensor sum = Flat(std::vector<float>(50, 1));
  ASSERT_TRUE(groups_.Start(kNow, 0, 1, reduce, Operation::kReduceScatter, sum).ok());
  EXPECT_THAT(device_.members[0]->sums, IsEmpty());
  EXPECT_THAT(device_.members[0]->slices, ElementsAre(32, 18));
  device_.members[0]->scatters.at(0)->answer = true;
  std::vector<Communicators::Done> done;
  ASSERT_TRUE(groups_.Poll(&done).ok());
  ASSERT_EQ(done.size(), 1u);
  const Tensor slice = groups_.TakeResult(reduce);
  EXPECT_EQ(slice.data, static_cast<float*>(sum.data) + 32);
  EXPECT_EQ(slice.bytes, 18 * sizeof(float));
  EXPECT_EQ(slice.owner, sum.owner);
}

TEST_F(CommunicatorsTest, Reduce_ThatLeavesItsMemberNoSlice_StillTakesPart) {
  JoinAll();
  ASSERT_TRUE(groups_.Start(kNow, 3, 1, Job::Reduce(0, 0, 0), Operation::kReduceScatter, Flat({1, 2})).ok());
  EXPECT_THAT(device_.members[1]->slices, ElementsAre(0, 2));
  device_.members[1]->scatters.at(0)->answer = true;
  std::vector<Communicators::Done> done;
  ASSERT_TRUE(groups_.Poll(&done).ok());
  EXPECT_EQ(groups_.TakeResult(Job::Reduce(0, 0, 0)).bytes, 0u);
}

TEST_F(CommunicatorsTest, Gather_Over_GivesTheWhole) {
  JoinAll();
  const Job forward = Job::Compute(4, 2, 1, JobKind::kForward);
  const Tensor whole = Flat(std::vector<float>(50, 1));
  ASSERT_TRUE(
      groups_.Start(kNow, 0, 1, forward, Operation::kJoinGather, Flat(std::vector<float>(18, 2)), whole)
          .ok());
  EXPECT_THAT(device_.members[0]->slices, ElementsAre(32, 18));
  device_.members[0]->gathers.at(0)->answer = true;
  std::vector<Communicators::Done> done;
  ASSERT_TRUE(groups_.Poll(&done).ok());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].job, forward);
  EXPECT_EQ(groups_.TakeResult(forward).data, whole.data);
}

TEST_F(CommunicatorsTest, Gather_FromAMemberWithoutASlice_StillTakesPart) {
  JoinAll();
  const Tensor whole = Flat({1, 2});
  ASSERT_TRUE(groups_
                  .Start(kNow, 3, 1, Job::Compute(0, 0, 0, JobKind::kForward), Operation::kJoinGather,
                         Tensor(), whole)
                  .ok());
  EXPECT_THAT(device_.members[1]->slices, ElementsAre(0, 2));
  EXPECT_EQ(device_.members[1]->gathers.size(), 1u);
}

TEST_F(CommunicatorsTest, Reduce_OfNothing_IsOverWithoutTheDevice) {
  JoinAll();
  ASSERT_TRUE(groups_.Start(kNow, 0, 1, Job::Reduce(0, 0, 1), Operation::kAllReduce, Tensor()).ok());
  std::vector<Communicators::Done> done;
  ASSERT_TRUE(groups_.Poll(&done).ok());
  EXPECT_EQ(done.size(), 1u);
  EXPECT_THAT(device_.members[0]->sums, IsEmpty());
}

TEST_F(CommunicatorsTest, Reduce_Fails_NamesTheJobAndTheRank) {
  JoinAll();
  ASSERT_TRUE(groups_.Start(kNow, 3, 1, Job::Reduce(4, 2, 0), Operation::kAllReduce, Flat({1})).ok());
  device_.members[1]->sums[0]->answer = absl::UnavailableError("the network");
  std::vector<Communicators::Done> done;
  const absl::Status status = groups_.Poll(&done);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "reduce (step 4, stage 2, member 0) on rank 1: the network");
}

TEST_F(CommunicatorsTest, Reduce_InAGroupThatIsNotJoined_IsRefused) {
  ASSERT_TRUE(Begin().ok());
  EXPECT_FALSE(groups_.Start(kNow, 0, 1, Job::Reduce(0, 0, 1), Operation::kAllReduce, Flat({1})).ok());
}

TEST_F(CommunicatorsTest, Clear_AbortsWhatIsUnderWayWithTheCause) {
  JoinAll();
  ASSERT_TRUE(groups_.Start(kNow, 0, 1, Job::Reduce(0, 0, 1), Operation::kAllReduce, Flat({1})).ok());
  groups_.Clear(absl::AbortedError("no more"));
  for (const auto& member : device_.members) EXPECT_EQ(member->aborted, absl::AbortedError("no more"));
  EXPECT_FALSE(groups_.busy());
}

}  // namespace
}  // namespace weft::communicators_test
