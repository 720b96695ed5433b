// The worker core where the schedule has overlapped pairs.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/simulator/actions.h"
#include "tests/unit/one_process.h"
#include "tests/unit/without_terms.h"

namespace weft::worker_pairs_test {
namespace {

// A rank whose order is a forward, a forward with a whole backward beside it, and a backward in its two
// halves.
class OnePair : public OneProcess {
 protected:
  void SetUp() override {
    Begin({WithoutTerms(*ScheduleFromActions("0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1")), 1});
    core_->OnMessage(10, GrantOf(0, ClaimOrder(Graph(shape_.schedule))->front()[0]), &out_);
  }
  static Job Of(int microbatch, JobKind kind) { return Job::Compute(0, 0, microbatch, kind); }
  // The jobs that start when `job` ends: each with whether it is for the second thread.
  std::vector<std::pair<Job, bool>> End(const Job& job, int64_t start, int64_t end) {
    out_.clear();
    core_->OnJobDone(end, {0, job, start, end, true, {}, {}}, &out_);
    return Started();
  }
  std::vector<std::pair<Job, bool>> Started() const {
    std::vector<std::pair<Job, bool>> started;
    for (const StartEffect& s : Only<StartEffect>(out_)) started.emplace_back(s.job, s.overlapped);
    return started;
  }

  const Job first_ = Of(0, JobKind::kForward), forward_ = Of(1, JobKind::kForward),
            input_ = Of(0, JobKind::kBackwardInput), weight_ = Of(0, JobKind::kBackwardWeight),
            last_input_ = Of(1, JobKind::kBackwardInput);
  WorkerEffects out_;
};

using Starts = std::vector<std::pair<Job, bool>>;

TEST_F(OnePair, BothReady_AreInFlightAtOnce) {
  EXPECT_EQ(Started(), (Starts{{first_, false}}));
  EXPECT_EQ(End(first_, 10, 20), (Starts{{forward_, false}, {input_, true}}));
}

TEST_F(OnePair, BackwardThatEndsFirst_GivesItsPlaceToTheNextBesideTheForward) {
  End(first_, 10, 20);
  EXPECT_EQ(End(input_, 20, 30), (Starts{{weight_, true}}));
  EXPECT_EQ(End(weight_, 30, 40), Starts()) << "the next is in turn: not beside the forward";
  EXPECT_EQ(End(forward_, 20, 50), (Starts{{last_input_, false}}));
}

TEST_F(OnePair, ForwardThatEndsFirst_NothingStartsBesideTheBackward) {
  End(first_, 10, 20);
  EXPECT_EQ(End(forward_, 20, 30), Starts());
  EXPECT_EQ(End(input_, 20, 40), (Starts{{weight_, false}})) << "the rank was idle";
}

TEST_F(OnePair, TimeOfTwoJobsInFlight_IsBusyOnceForTheFirst) {
  End(first_, 10, 20);
  End(input_, 23, 30);
  EXPECT_EQ(core_->ClockAt(35, 0).wall(), 20) << "open while the forward runs";
  End(weight_, 32, 45);
  End(forward_, 21, 40);  // known only now that it began before both, and ended before the second
  End(last_input_, 50, 60);
  const RankClock& clock = core_->ClockAt(60, 0);
  EXPECT_EQ(clock.busy(JobKind::kForward), 10 + 19);
  EXPECT_EQ(clock.busy(JobKind::kBackwardInput), 10);
  EXPECT_EQ(clock.busy(JobKind::kBackwardWeight), 5);
  int64_t sum = 0;
  for (int k = 0; k < kJobKinds; ++k) sum += clock.busy(static_cast<JobKind>(k));
  for (int c = 0; c < kIdleCauses; ++c) sum += clock.idle(static_cast<IdleCause>(c));
  EXPECT_EQ(sum, clock.wall());
  EXPECT_EQ(clock.wall(), 60);
}

TEST_F(OnePair, AbortWhileBothRun_ForgetsAfterTheLastOfThem) {
  End(first_, 10, 20);
  core_->OnMessage(25, Abort{7, "cancelled"}, &out_);
  End(input_, 20, 30);
  EXPECT_TRUE(Only<ForgetEffect>(out_).empty());
  EXPECT_EQ(End(forward_, 20, 40), Starts());
  EXPECT_EQ(Only<ForgetEffect>(out_).size(), 1u);
}

// The pair runs on a device that is given jobs ahead.
class LaunchedPair : public OnePair {
 protected:
  void SetUp() override { Plan("0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1", /*launch_ahead=*/2); }
  void Plan(const std::string& actions, int launch_ahead) {
    Begin({WithoutTerms(*ScheduleFromActions(actions)), 1}, launch_ahead);
    out_.clear();
    core_->OnMessage(10, GrantOf(0, ClaimOrder(Graph(shape_.schedule))->front()[0]), &out_);
  }
  Starts Launch(const Job& job, int64_t now) {
    out_.clear();
    core_->OnJobLaunched(now, 0, job, true, {}, &out_);
    return Started();
  }
  Starts Done(const Job& job, int64_t start, int64_t end, int64_t now = 0) {
    out_.clear();
    JobDone done{0, job, start, end, true, {}, {}};
    done.launched = true;
    core_->OnJobDone(std::max(now, end), done, &out_);
    return Started();
  }
};

TEST_F(LaunchedPair, ForwardThatIsLaunched_TheNextStartsBesideIt) {
  EXPECT_EQ(Launch(first_, 11), (Starts{{forward_, false}, {input_, true}}));
  EXPECT_EQ(Launch(forward_, 12), Starts()) << "two of the rank are in flight, and one beside";
  EXPECT_EQ(Launch(input_, 13), (Starts{{weight_, true}}));
  EXPECT_EQ(Launch(weight_, 14), Starts());
  EXPECT_EQ(Done(first_, 12, 20), (Starts{{last_input_, false}})) << "behind all of them";
}

TEST_F(LaunchedPair, JobsBesideForwards_AreAsManyAsTheDeviceTakes) {
  Plan("0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1", /*launch_ahead=*/1);
  EXPECT_EQ(Launch(first_, 11), Starts());
  EXPECT_EQ(Done(first_, 12, 20), (Starts{{forward_, false}, {input_, true}}));
  EXPECT_EQ(Launch(forward_, 21), Starts());
  EXPECT_EQ(Launch(input_, 22), Starts()) << "neither beside the forward, nor behind it";
  EXPECT_EQ(Done(input_, 22, 30), (Starts{{weight_, true}}));
}

// It is ready as soon as the forward has been launched; beside it, the device would not wait for that.
TEST_F(LaunchedPair, BackwardOfTheForwardItself_StartsBehindIt) {
  Plan("(0F0;0B0)OVERLAP_F_B", /*launch_ahead=*/2);
  EXPECT_EQ(Launch(first_, 11), (Starts{{Of(0, JobKind::kBackward), false}}));
}

TEST_F(LaunchedPair, TimeOfBothOnTheDevice_IsBusyOnceForTheFirst) {
  Launch(first_, 11);
  Done(first_, 12, 20);
  Launch(forward_, 21);
  Launch(input_, 22);
  Launch(weight_, 23);
  Done(input_, 24, 30);
  Launch(last_input_, 31);  // behind the forward, so it is in flight throughout
  Done(weight_, 30, 45);
  EXPECT_EQ(core_->ClockAt(46, 0).wall(), 20) << "open while the forward runs";
  Done(forward_, 22, 40, 47);
  Done(last_input_, 50, 60);
  const RankClock& clock = core_->ClockAt(60, 0);
  EXPECT_EQ(clock.busy(JobKind::kForward), 8 + 18);
  EXPECT_EQ(clock.busy(JobKind::kBackwardWeight), 5);
  EXPECT_EQ(clock.busy(JobKind::kBackwardInput), 10);
  EXPECT_EQ(clock.unsettled(), 0u);
}

}  // namespace
}  // namespace weft::worker_pairs_test
