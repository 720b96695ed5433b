// The adapter of NCCL over fakes of NCCL and of the CUDA runtime (fake_cuda.h): what it makes of joins that
// take long, members that are late, dead or at odds, and of an abort. Each member is a device of its own.
#include "worker/shell/cuda/nccl_communicator.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/fake_cuda.h"

namespace weft::nccl_communicator_test {
namespace {

using ::testing::AllOf;
using testing::AwaitFakeCommunicators;
using testing::FakeCommunicators;
using testing::FakeOperations;
using testing::FakeOperationsDone;
using ::testing::HasSubstr;
using testing::HoldFakeNcclCalls;
using testing::SetFakeNcclError;
using testing::SetFakeNcclPolls;

constexpr int64_t kPatience = 60'000'000'000, kSoon = 20'000'000;

Tensor Flat(std::vector<float> values) {
  auto kept = std::make_shared<std::vector<float>>(std::move(values));
  Tensor t;
  t.shape.dims = 1;
  t.shape.size[0] = static_cast<int64_t>(kept->size());
  t.data = kept->data();
  t.bytes = kept->size() * sizeof(float);
  t.owner = kept;
  return t;
}

std::vector<float> ValuesOf(const Tensor& t) {
  const auto* begin = static_cast<const float*>(t.data);
  return {begin, begin + t.bytes / sizeof(float)};
}

// Asks until the answer is not "not yet".
template <typename Ask>
absl::Status Await(Ask ask) {
  while (true) {
    const absl::StatusOr<bool> answer = ask();
    if (!answer.ok()) return answer.status();
    if (*answer) return absl::OkStatus();
    std::this_thread::yield();
  }
}
absl::Status Await(const std::shared_ptr<Fence>& fence) {
  return Await([&] { return fence->Reached(); });
}
// A fence that the test reaches.
class HandFence final : public Fence {
 public:
  absl::StatusOr<bool> Reached() override {
    if (!failure.ok()) return failure;
    return reached.load();
  }
  std::atomic<bool> reached{false};
  absl::Status failure;
};

class NcclCommunicatorTest : public ::testing::Test {
 protected:
  explicit NcclCommunicatorTest(int devices = 3) {
    for (int d = 0; d < devices; ++d) devices_.push_back(CreateNcclLibrary(d));
  }
  ~NcclCommunicatorTest() override {
    HoldFakeNcclCalls(false);
    SetFakeNcclPolls(0);
    SetFakeNcclError(ncclSuccess);
  }

  using Group = std::unique_ptr<Communicator>;
  Group BeginJoin(const std::string& id, const std::vector<Rank>& ranks, int self,
                  int64_t join_ns = kPatience, int64_t operation_ns = kPatience) {
    auto group = devices_[ranks[self]]->Join(id, ranks, self, MonotonicNow() + join_ns, operation_ns);
    EXPECT_TRUE(group.ok()) << group.status();
    return *std::move(group);
  }
  // All members, joined. Members of ranks[i] are of device ranks[i].
  std::vector<Group> JoinAll(const std::vector<Rank>& ranks, int64_t operation_ns = kPatience) {
    const std::string id = *devices_[ranks[0]]->NewGroupId();
    std::vector<Group> groups;
    for (size_t i = 0; i < ranks.size(); ++i)
      groups.push_back(BeginJoin(id, ranks, static_cast<int>(i), kPatience, operation_ns));
    for (const Group& group : groups) {
      const absl::Status joined = Await([&] { return group->Joined(); });
      EXPECT_TRUE(joined.ok()) << joined;
    }
    return groups;
  }

  std::vector<std::unique_ptr<CommunicationLibrary>> devices_;
};

TEST_F(NcclCommunicatorTest, Join_OneMemberIsMissing_IsNotJoinedUntilItComes) {
  const std::string id = *devices_[0]->NewGroupId();
  const Group first = BeginJoin(id, {0, 1}, 0);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(*first->Joined(), false);
  const Group second = BeginJoin(id, {0, 1}, 1);
  EXPECT_TRUE(Await([&] { return first->Joined(); }).ok());
  EXPECT_TRUE(Await([&] { return second->Joined(); }).ok());
}

TEST_F(NcclCommunicatorTest, Join_AMemberNeverJoins_IsDeadlineExceededThatNamesTheOthersAndLeavesNothing) {
  const int before = FakeCommunicators();
  const std::string id = *devices_[0]->NewGroupId();
  const Group group = BeginJoin(id, {0, 2, 1}, 0, kSoon);
  const absl::Status status = Await([&] { return group->Joined(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 2 or 1 did not join"), HasSubstr("rank 0")));
  EXPECT_TRUE(AwaitFakeCommunicators(before));
  EXPECT_EQ(group->AllReduce(Flat({1}), Flat({0})).status(), status);
}

TEST_F(NcclCommunicatorTest, Join_MembersWithDifferentIds_AreBothLate) {
  const Group one = BeginJoin(*devices_[0]->NewGroupId(), {0, 1}, 0, kSoon);
  const Group two = BeginJoin(*devices_[1]->NewGroupId(), {0, 1}, 1, kSoon);
  EXPECT_THAT(std::string(Await([&] { return one->Joined(); }).message()), HasSubstr("rank 1 did not join"));
  EXPECT_THAT(std::string(Await([&] { return two->Joined(); }).message()), HasSubstr("rank 0 did not join"));
}

TEST_F(NcclCommunicatorTest, Join_IdOrMemberThatCannotBe_IsRefused) {
  EXPECT_EQ(devices_[0]->Join("short", {0, 1}, 0, MonotonicNow() + kSoon, kSoon).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string id = *devices_[0]->NewGroupId();
  EXPECT_EQ(devices_[0]->Join(id, {0, 1}, 2, MonotonicNow() + kSoon, kSoon).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NcclCommunicatorTest, Join_TheErrorOfNccl_IsTold) {
  SetFakeNcclError(ncclSystemError);
  const Group group = BeginJoin(*devices_[0]->NewGroupId(), {0, 1}, 0);
  const absl::Status status = Await([&] { return group->Joined(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("joining the group of ranks 0, 1 (this is rank 0)"));
}

TEST_F(NcclCommunicatorTest, AllReduce_BeforeTheGroupIsComplete_IsRefused) {
  const Group group = BeginJoin(*devices_[0]->NewGroupId(), {0, 1}, 0);
  EXPECT_EQ(group->AllReduce(Flat({1}), Flat({0})).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(NcclCommunicatorTest, AllReduce_OfAllMembers_GivesEveryoneTheSum) {
  for (const int polls : {0, 3}) {
    SetFakeNcclPolls(polls);
    const std::vector<Group> groups = JoinAll({0, 1, 2});
    std::vector<Tensor> to;
    std::vector<std::shared_ptr<Fence>> fences;
    for (int m = 0; m < 3; ++m) {
      const float base = static_cast<float>(m);
      const Tensor from = Flat({base + 1, 10 * base, -base});
      to.push_back(m == 2 ? from : Flat({0, 0, 0}));  // one of them in place
      auto fence = groups[m]->AllReduce(from, to.back());
      ASSERT_TRUE(fence.ok()) << fence.status();
      fences.push_back(*fence);
      if (m == 2) continue;
      EXPECT_EQ(*fences[0]->Reached(), false) << "not all members have come";
    }
    for (int m = 0; m < 3; ++m) {
      ASSERT_TRUE(Await(fences[m]).ok());
      EXPECT_EQ(ValuesOf(to[m]), (std::vector<float>{6, 30, -3}));
    }
  }
}

TEST_F(NcclCommunicatorTest, AllGather_UnevenSlices_PutsEachInItsPlace) {
  const std::vector<Group> groups = JoinAll({2, 0, 1});
  const std::vector<int64_t> slices = {2, 0, 3};
  const std::vector<Tensor> mine = {Flat({1, 2}), Flat({}), Flat({3, 4, 5})};
  std::vector<Tensor> all;
  std::vector<std::shared_ptr<Fence>> fences;
  for (int m = 0; m < 3; ++m) {
    all.push_back(Flat(std::vector<float>(5, -1)));
    fences.push_back(*groups[m]->AllGather(mine[m], all[m], slices));
  }
  for (int m = 0; m < 3; ++m) {
    ASSERT_TRUE(Await(fences[m]).ok());
    EXPECT_EQ(ValuesOf(all[m]), (std::vector<float>{1, 2, 3, 4, 5}));
  }
}

TEST_F(NcclCommunicatorTest, ReduceScatter_UnevenSlices_GivesEachMemberTheSumOfItsOwn) {
  SetFakeNcclPolls(2);
  const std::vector<Group> groups = JoinAll({0, 1, 2});
  const std::vector<int64_t> slices = {1, 4, 0};
  std::vector<Tensor> mine = {Flat({0}), Flat({0, 0, 0, 0}), Flat({})};
  std::vector<std::shared_ptr<Fence>> fences;
  for (int m = 0; m < 3; ++m) {
    const float f = static_cast<float>(m + 1);
    fences.push_back(*groups[m]->ReduceScatter(Flat({f, 2 * f, 3 * f, 4 * f, 5 * f}), mine[m], slices));
  }
  for (const auto& fence : fences) ASSERT_TRUE(Await(fence).ok());
  EXPECT_EQ(ValuesOf(mine[0]), (std::vector<float>{6}));
  EXPECT_EQ(ValuesOf(mine[1]), (std::vector<float>{12, 18, 24, 30}));
}

TEST_F(NcclCommunicatorTest, EqualSlices_AreGatheredAndScatteredByOneOperation) {
  const std::vector<Group> groups = JoinAll({1, 0, 2});
  const std::vector<int64_t> slices = {2, 2, 2};
  std::vector<Tensor> all, sums;
  std::vector<std::shared_ptr<Fence>> fences;
  const int before = FakeOperationsDone();
  for (int m = 0; m < 3; ++m) {
    const float f = static_cast<float>(m + 1);
    all.push_back(Flat(std::vector<float>(6, -1)));
    sums.push_back(Flat({f, 2 * f, 3 * f, 4 * f, 5 * f, 6 * f}));
    fences.push_back(*groups[m]->AllGather(Flat({f, 10 * f}), all[m], slices));
    // The result is in its place, as the sums of gradients are.
    Tensor own = sums[m];
    own.data = static_cast<float*>(own.data) + 2 * m;
    own.bytes = 2 * sizeof(float);
    fences.push_back(*groups[m]->ReduceScatter(sums[m], own, slices));
  }
  for (const auto& fence : fences) ASSERT_TRUE(Await(fence).ok());
  EXPECT_EQ(FakeOperationsDone() - before, 2 * 3);
  for (int m = 0; m < 3; ++m) {
    EXPECT_EQ(ValuesOf(all[m]), (std::vector<float>{1, 10, 2, 20, 3, 30}));
    const auto own = static_cast<float>(12 * m + 6);
    EXPECT_EQ(ValuesOf(sums[m])[2 * m], own);
    EXPECT_EQ(ValuesOf(sums[m])[2 * m + 1], own + 6);
  }
}

TEST_F(NcclCommunicatorTest, Buffers_OfTheWrongSize_AreRefused) {
  const std::vector<Group> groups = JoinAll({0, 1});
  EXPECT_FALSE(groups[0]->AllReduce(Flat({1, 2}), Flat({1})).ok());
  EXPECT_FALSE(groups[0]->AllGather(Flat({1}), Flat({1, 2, 3}), {2, 1}).ok());
  EXPECT_FALSE(groups[0]->ReduceScatter(Flat({1, 2, 3}), Flat({1}), {3}).ok());
}

TEST_F(NcclCommunicatorTest, Operations_OfOneDeviceOnSeveralGroups_AreDoneInTheOrderGiven) {
  const std::vector<Group> all = JoinAll({0, 1, 2}), pair = JoinAll({0, 1});
  const Tensor a = Flat({1}), b = Flat({1});
  const auto first = *all[0]->AllReduce(a, a), second = *pair[0]->AllReduce(b, b);
  const Tensor other = Flat({1});
  const auto third = *pair[1]->AllReduce(other, other);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(*second->Reached(), false) << "what stands before it on the device has not been done";
    EXPECT_EQ(*third->Reached(), false);
  }
  for (const int m : {1, 2}) {
    const Tensor c = Flat({1});
    // Member 1 gave its operations in another order, which nobody else waits for here.
    ASSERT_TRUE(all[m]->AllReduce(c, c).ok());
  }
  // Device 1 has the pair's operation on its stream before that of all: a circle, which the deadlines end.
  // The order of the job graph rules out such a circle; the test shows that the circle is real.
  for (int i = 0; i < 200; ++i) EXPECT_EQ(*first->Reached(), false);
}

// A kernel that the same thread launches next would take it for its own.
TEST_F(NcclCommunicatorTest, Operation_UnderWay_LeavesNoErrorWithTheThreadThatAsks) {
  const std::vector<Group> groups = JoinAll({0, 1});
  const Tensor a = Flat({1}), b = Flat({2});
  const auto fence = *groups[0]->AllReduce(a, a);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(*fence->Reached(), false);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  ASSERT_TRUE(groups[1]->AllReduce(b, b).ok());
  ASSERT_TRUE(Await(fence).ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(NcclCommunicatorTest, Operation_AMemberNeverComes_IsDeadlineExceededAndIsFreed) {
  const int before = FakeOperations();
  std::vector<Group> groups = JoinAll({0, 1}, kSoon);
  Tensor sum = Flat({1, 2});
  const std::weak_ptr<void> memory = sum.owner;
  auto fence = *groups[0]->AllReduce(sum, sum);
  sum = {};
  const absl::Status status = Await(fence);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the all-reduce of 2 elements in the group of ranks 0, 1 (this is rank 0)"),
                    HasSubstr("rank 1 did not come to it")));
  EXPECT_EQ(groups[0]->Joined().status(), status) << "the group has ended";
  while (FakeOperations() > before) std::this_thread::yield();
  // The next look at the line frees what the aborted operation used.
  while (!memory.expired()) {
    groups[0]->Abort(absl::OkStatus());
    std::this_thread::yield();
  }
}

TEST_F(NcclCommunicatorTest, Join_AfterGroupsThatWereAborted_FreesWhatTheyUsed) {
  const int before = FakeOperations();
  std::vector<Group> groups = JoinAll({0, 1});
  Tensor sum = Flat({1, 2});
  const std::weak_ptr<void> memory = sum.owner;
  auto fence = *groups[0]->AllReduce(sum, sum);
  sum = {};
  fence = nullptr;
  groups.clear();
  while (FakeOperations() > before) std::this_thread::yield();
  // Nobody looks at the line between two runs; who leaves a group would.
  std::vector<std::vector<Group>> later;
  const int64_t deadline = MonotonicNow() + kPatience;
  while (!memory.expired() && MonotonicNow() < deadline) later.push_back(JoinAll({0, 1}));
  EXPECT_TRUE(memory.expired());
}

TEST_F(NcclCommunicatorTest, Operation_AMemberDiesInTheMiddle_FailsTheOthersAtOnce) {
  std::vector<Group> groups = JoinAll({0, 1, 2});
  const Tensor a = Flat({1}), b = Flat({1});
  const auto fence = *groups[0]->AllReduce(a, a), other = *groups[1]->AllReduce(b, b);
  groups[2].reset();
  for (const auto& f : {fence, other}) {
    const absl::Status status = Await(f);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("remote process exited"));
  }
}

TEST_F(NcclCommunicatorTest, Operation_AsynchronousError_NamesTheOperationAndTheMembers) {
  std::vector<Group> groups = JoinAll({0, 1});
  const Tensor a = Flat({1});
  const auto fence = *groups[0]->AllReduce(a, a);
  SetFakeNcclError(ncclInternalError);
  const absl::Status status = Await(fence);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the all-reduce of 1 elements"), HasSubstr("with rank 1")));
}

TEST_F(NcclCommunicatorTest, Operation_MembersAtOdds_Fail) {
  std::vector<Group> groups = JoinAll({0, 1});
  const Tensor a = Flat({1}), b = Flat({1, 2});
  const auto one = *groups[0]->AllReduce(a, a), two = *groups[1]->AllReduce(b, b);
  // The member that sees the error first aborts, and the other sees either.
  EXPECT_FALSE(Await(one).ok());
  EXPECT_FALSE(Await(two).ok());
}

TEST_F(NcclCommunicatorTest, Abort_WhileOperationsAreEnqueued_EndsThemWithTheFirstCause) {
  std::vector<Group> groups = JoinAll({0, 1});
  std::vector<std::shared_ptr<Fence>> fences;
  for (int i = 0; i < 3; ++i) {
    const Tensor a = Flat({1});
    fences.push_back(*groups[0]->AllReduce(a, a));
  }
  groups[0]->Abort(absl::AbortedError("the run was aborted"));
  groups[0]->Abort(absl::AbortedError("something later"));
  for (const auto& fence : fences)
    EXPECT_EQ(fence->Reached().status(), absl::AbortedError("the run was aborted"));
}

TEST_F(NcclCommunicatorTest, Abort_OfOneGroup_LeavesOthersOfTheDevice) {
  std::vector<Group> groups = JoinAll({0, 1}), others = JoinAll({0, 2});
  const Tensor a = Flat({1}), b = Flat({2}), c = Flat({3});
  const auto stuck = *groups[0]->AllReduce(a, a), behind = *others[0]->AllReduce(b, b);
  const auto partner = *others[1]->AllReduce(c, c);
  groups[0]->Abort(absl::AbortedError("no more"));
  EXPECT_TRUE(Await(behind).ok());
  EXPECT_TRUE(Await(partner).ok());
  EXPECT_EQ(ValuesOf(b), (std::vector<float>{5}));
}

// NCCL returns from the abort of the second one when the stream has come past its operation, so not before
// the first one has been aborted as well, which the same thread does next.
TEST_F(NcclCommunicatorTest, Abort_OfAGroupBehindAStuckOne_WaitsForNobody) {
  const int before = FakeCommunicators();
  std::vector<Group> groups = JoinAll({0, 1}), others = JoinAll({0, 2});
  Tensor b = Flat({2});
  const std::weak_ptr<void> memory = b.owner;
  const Tensor a = Flat({1}), c = Flat({3});
  const auto stuck = *groups[0]->AllReduce(a, a), behind = *others[0]->AllReduce(b, b);
  const auto partner = *others[1]->AllReduce(c, c);
  b = {};
  others[0]->Abort(absl::AbortedError("no more"));
  EXPECT_EQ(behind->Reached().status(), absl::AbortedError("no more"));
  EXPECT_EQ(*stuck->Reached(), false);
  EXPECT_FALSE(memory.expired()) << "it may be written as long as the stream has not come past it";
  groups[0]->Abort(absl::AbortedError("nor this"));
  groups.clear();
  others.clear();
  EXPECT_TRUE(AwaitFakeCommunicators(before));
  for (const int64_t deadline = MonotonicNow() + kPatience; !memory.expired() && MonotonicNow() < deadline;) {
    (void)stuck->Reached();
    BeginJoin(*devices_[0]->NewGroupId(), {0, 1}, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // each turn makes a communicator and a thread
  }
  EXPECT_TRUE(memory.expired());
}

// NCCL's thread may give the stream a part of it until the abort has returned.
TEST_F(NcclCommunicatorTest, Abort_WhileACallIsInProgress_KeepsWhatItUses) {
  std::vector<Group> groups = JoinAll({0, 1});
  SetFakeNcclPolls(1'000'000'000);
  HoldFakeNcclCalls(true);
  Tensor sum = Flat({1, 2});
  const std::weak_ptr<void> memory = sum.owner;
  const auto fence = *groups[0]->AllReduce(sum, sum);
  sum = {};
  const int before = FakeCommunicators();
  groups[0]->Abort(absl::AbortedError("no more"));
  EXPECT_EQ(fence->Reached().status(), absl::AbortedError("no more"));
  for (int i = 0; i < 20; ++i) {
    groups[0]->Abort(absl::OkStatus());  // which lets go of what it may
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(memory.expired()) << "the call may give it to the stream yet";
  EXPECT_EQ(FakeCommunicators(), before);
  HoldFakeNcclCalls(false);
  EXPECT_TRUE(AwaitFakeCommunicators(before - 1));
  for (const int64_t deadline = MonotonicNow() + kPatience; !memory.expired() && MonotonicNow() < deadline;)
    groups[0]->Abort(absl::OkStatus());
  EXPECT_TRUE(memory.expired());
}

TEST_F(NcclCommunicatorTest, Operation_InputNotReady_WaitsForItAndHoldsBackThoseBehind) {
  std::vector<Group> groups = JoinAll({0, 1});
  const auto ready = std::make_shared<HandFence>();
  Tensor late = Flat({1});
  late.ready = ready;
  const Tensor next = Flat({10}), x = Flat({2}), y = Flat({20});
  const auto first = *groups[0]->AllReduce(late, late), second = *groups[0]->AllReduce(next, next);
  const auto one = *groups[1]->AllReduce(x, x), two = *groups[1]->AllReduce(y, y);
  for (int i = 0; i < 200; ++i) ASSERT_FALSE(*second->Reached() || *one->Reached());
  *static_cast<float*>(late.data) = 7;
  ready->reached = true;
  for (const auto& fence : {first, second, one, two}) ASSERT_TRUE(Await(fence).ok());
  EXPECT_EQ(ValuesOf(late), (std::vector<float>{9}));
  EXPECT_EQ(ValuesOf(next), (std::vector<float>{30}));
}

TEST_F(NcclCommunicatorTest, Operation_InputFails_EndsTheGroupWithItsFailure) {
  std::vector<Group> groups = JoinAll({0, 1});
  const auto ready = std::make_shared<HandFence>();
  ready->failure = absl::InternalError("the backward failed");
  Tensor bad = Flat({1});
  bad.ready = ready;
  EXPECT_EQ(Await(*groups[0]->AllReduce(bad, bad)), ready->failure);
}

TEST_F(NcclCommunicatorTest, Input_ThatTheDeviceCanAwait_IsNotAskedOnTheHost) {
  const auto ready = std::make_shared<HandFence>();  // never reached as the host sees it
  int waits = 0;
  devices_[0] = CreateNcclLibrary(0, [&](void* stream, Fence& fence) {
    waits += stream != nullptr && &fence == ready.get();
    return true;
  });
  std::vector<Group> groups = JoinAll({0, 1});
  Tensor a = Flat({1});
  a.ready = ready;
  const Tensor b = Flat({2});
  const auto one = *groups[0]->AllReduce(a, Flat({0})), two = *groups[1]->AllReduce(b, b);
  EXPECT_TRUE(Await(one).ok());
  EXPECT_TRUE(Await(two).ok());
  EXPECT_EQ(waits, 1);
}

// Then what is on the stream, and what it uses, is left as it is.
TEST_F(NcclCommunicatorTest, DeviceThatHangs_DoesNotHoldTheEndOfItsCollectives) {
  std::atomic<bool> hangs{true}, ended{false};
  devices_[0] = CreateNcclLibrary(0, [&](void* stream, Fence&) {
    testing::EnqueueFake(static_cast<cudaStream_t>(stream), [&] {
      while (hangs) std::this_thread::yield();
      ended = true;
    });
    return true;
  });
  const int before = FakeCommunicators();
  std::vector<Group> groups = JoinAll({0, 1});
  Tensor sum = Flat({1});
  sum.ready = std::make_shared<HandFence>();
  const std::weak_ptr<void> memory = sum.owner;
  std::shared_ptr<Fence> fence = *groups[0]->AllReduce(sum, sum);
  sum = {};
  groups.clear();
  fence.reset();
  devices_[0].reset();
  EXPECT_FALSE(memory.expired());
  hangs = false;
  while (!ended) std::this_thread::yield();
  EXPECT_TRUE(AwaitFakeCommunicators(before));
}

TEST_F(NcclCommunicatorTest, Collectives_Name_HasTheVersion) {
  EXPECT_THAT(devices_[0]->name(), ::testing::StartsWith("nccl 2."));
}

}  // namespace
}  // namespace weft::nccl_communicator_test
