#include "coordinator/replanning/replan_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/replanning/left_links.h"
#include "coordinator/replanning/measured_links.h"
#include "run/network_spec.h"
#include "run/run_schedule.h"
#include "run/schedule_spec.h"
#include "tests/unit/ranks_of_speeds.h"

namespace weft::replan_watch_test {
namespace {

// Plays a run whose ranks have these speeds, with immediate answers. Returns the step behind which it wants
// to move; -1 if it does not within so many steps.
int MovesBehind(ReplanWatch* watch, const RunSpec& run, const std::vector<double>& speeds, int from,
                int steps, double job_seconds = 1) {
  const MeasuredJobs jobs = JobsAt(run, speeds);
  for (int step = from; step < from + steps; ++step) {
    for (Rank r = 0; r < jobs.ranks(); ++r) {
      for (int s = 0; s < jobs.stages(); ++s) {
        for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
          if (jobs.Of(r, kind, s).count > 0)
            watch->JobEnded(r, Job::Compute(step, s, 0, kind), job_seconds * jobs.Of(r, kind, s).mean());
        }
      }
    }
    if (const auto question = watch->StepEnded(step)) {
      if (watch->Take(AnswerOf(*question))) return step;
    }
  }
  return -1;
}

class Watching : public ::testing::Test {
 protected:
  Watching() { watch_.Began(0); }
  static std::shared_ptr<const RunSpec> Run() {
    RunSpec run = RunUnder("ddp,ranks=2", 12);
    run.replan = {0.05, 4};
    return std::make_shared<const RunSpec>(std::move(run));
  }
  // Moves the run in step 10 to what suits a slow second rank, where it stays for so many steps. Returns the
  // run as it goes on.
  RunSpec Move(int stays) {
    RunSpec moved = *run_;
    moved.schedule = BetterAt(*run_, {1, 0.5}).schedule;
    moved.replan.steps = stays;
    watch_.Replanned(std::make_shared<const RunSpec>(moved), 10);
    watch_.Began(1);
    return moved;
  }

  const std::shared_ptr<const RunSpec> run_ = Run();
  ReplanWatch watch_{run_, 2};
};

TEST_F(Watching, RankThatBecomesSlow_MovesTheRunBehindThreeSteps) {
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 1}, 0, 20), -1);
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 0.5}, 20, 20), 22);
}

TEST_F(Watching, Hiccup_DoesNotMoveTheRun) {
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 1}, 0, 8), -1);
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 0.5}, 8, 2), -1);  // two windows
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 1}, 10, 20), -1);
}

TEST_F(Watching, SmallGain_DoesNotMoveTheRun) {
  EXPECT_EQ(MovesBehind(&watch_, *run_, {1, 0.97}, 0, 40), -1);
}

TEST_F(Watching, MovedRun_StaysForSoManySteps) {
  ASSERT_GE(MovesBehind(&watch_, *run_, {1, 0.5}, 0, 20), 0);
  const RunSpec moved = Move(/*stays=*/12);
  // The rank is fast again: not before step 22, and then back.
  EXPECT_EQ(MovesBehind(&watch_, moved, {1, 1}, 10, 11), -1);
  EXPECT_GE(MovesBehind(&watch_, moved, {1, 1}, 21, 20), 22);
}

// To and fro it does not go: at the speeds for which it has moved there is nothing more to gain.
TEST_F(Watching, MovedRunAtTheSameSpeeds_NeverMovesAgain) {
  ASSERT_GE(MovesBehind(&watch_, *run_, {1, 0.5}, 0, 20), 0);
  const RunSpec moved = Move(/*stays=*/1);
  EXPECT_EQ(MovesBehind(&watch_, moved, {1, 0.5}, 10, 100), -1);
}

// A quota lets a process run for a part of a tenth of a second: within shorter windows it shows in none or in
// all jobs.
TEST_F(Watching, ShortSteps_AreMeasuredTogether) {
  // A job of each stage and kind takes 0.5 ms and 1 ms on the fast rank: 18 ms a step on the slow one.
  const int step = MovesBehind(&watch_, *run_, {1, 0.5}, 0, 60, 0.5e-3);
  EXPECT_EQ(step, 1 + 3 * 14);
}

// Three ranks, of which each sends to each other one. The link of the first two takes so many times as long.
class WatchingLinks : public ::testing::Test {
 protected:
  static RunSpec Run(const std::string& schedule, const Json& stages = 6) {
    RunSpec run = RunUnder(schedule, 12, stages);
    run.replan = {0.05, 4};
    return run;
  }
  explicit WatchingLinks(RunSpec run = Run("custom,ranks=3,compute=s/2,order=1f1b"),
                         std::vector<double> work = std::vector<double>(6, 1))
      : run_(std::move(run)), work_(std::move(work)) {
    watch_.Began(0);
  }
  // Plays steps on equally fast ranks; returns the step behind which the run moves, -1 for none.
  int Play(double times, int from, int steps, std::vector<double> speeds = {1, 1, 1}) {
    const MeasuredJobs jobs = JobsAt(run_, speeds);
    for (int step = from; step < from + steps; ++step) {
      for (Rank r = 0; r < jobs.ranks(); ++r) {
        for (int s = 0; s < jobs.stages(); ++s) {
          for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
            if (jobs.Of(r, kind, s).count > 0)
              watch_.JobEnded(r, Job::Compute(step, s, 0, kind), work_[s] * jobs.Of(r, kind, s).mean());
          }
        }
      }
      const auto question = watch_.StepEnded(step);
      if (!question.has_value()) continue;
      Tell(times, step, speeds);
      last_ = AnswerOf(*question);
      if (watch_.Take(last_)) return step;
    }
    return -1;
  }
  // In each direction all tensors leave at the start of a step, and arrive one after the other.
  void Tell(double times, int step, const std::vector<double>& speeds) {
    if (step % told_every_ != 0) return;
    const auto tell = [&](Rank from, Rank to, double bandwidth) {
      double end = 1000.0 * step;
      int32_t b = 0;
      for (const int64_t bytes : {1000, 4000, 1000, 4000, 1000, 4000}) {
        end += static_cast<double>(bytes) / bandwidth / std::min(speeds[from], speeds[to]);
        const TransferKey key{TensorKind::kActivation, Job::Compute(step, 1, b++, JobKind::kForward)};
        watch_.TensorArrived(from, to, key, {1000.0 * step, end, bytes});
      }
    };
    if (passes_) {
      tell(0, 1, 1e4 / times);
      tell(1, 0, 1e4 / times);
    }
    tell(2, 1, 1e4);
    tell(0, 2, 1e4);
  }

  RunSpec run_;
  const std::vector<double> work_;  // by stage
  ReplanWatch watch_{std::make_shared<const RunSpec>(run_), 3};
  absl::StatusOr<WindowAnswer> last_;
  int told_every_ = 1;  // steps whose transfers are told
  bool passes_ = true;  // tensors go over the link of the first two
};

TEST_F(WatchingLinks, LinkThatBecomesSlow_MovesTheRunAwayFromIt) {
  EXPECT_EQ(Play(1, 0, 20), -1);
  EXPECT_GE(Play(100, 20, 20), 23) << "transfers come a window later than jobs";
  ASSERT_TRUE(last_.ok()) << last_.status();
  EXPECT_TRUE(last_->better.slow_links);
  ASSERT_EQ(last_->links.slow.size(), 1u);
  EXPECT_EQ(last_->links.slow[0].a, 0);
  EXPECT_EQ(last_->links.slow[0].b, 1);
  EXPECT_NEAR(last_->links.slow[0].times, 100, 1e-6);
  EXPECT_GT(last_->better.gain(), 0.05);
  EXPECT_NE(Sentence(last_->better, last_->measured, last_->links.slow)
                .find("the link of ranks 0 and 1 takes 100.0 times as long as usual"),
            std::string::npos);
  // Under what was found, no tensor passes between the two.
  RunSpec moved = run_;
  moved.schedule = last_->better.schedule;
  const auto schedule = ScheduleOf(moved);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  for (int s = 0; s + 1 < moved.stages(); ++s) {
    const Rank a = schedule->scheme.compute(Job::Compute(0, s, 0, JobKind::kForward));
    const Rank b = schedule->scheme.compute(Job::Compute(0, s + 1, 0, JobKind::kForward));
    EXPECT_FALSE(std::min(a, b) == 0 && std::max(a, b) == 1) << "stage " << s;
  }
}

TEST_F(WatchingLinks, LinkThatIsSlowFromTheStart_IsComparedWithTheOthers) {
  EXPECT_GE(Play(100, 0, 20), 0);
  ASSERT_TRUE(last_.ok()) << last_.status();
  EXPECT_TRUE(last_->better.slow_links);
  ASSERT_EQ(last_->links.slow.size(), 1u);
  EXPECT_EQ(std::pair(last_->links.slow[0].a, last_->links.slow[0].b), std::pair(0, 1));
}

// Processes may answer later than the next measurement ends.
TEST_F(WatchingLinks, WindowsWithoutTransfers_NeitherCountNorEndTheCount) {
  EXPECT_EQ(Play(1, 0, 20), -1);
  told_every_ = 3;
  const int step = Play(100, 20, 40);
  EXPECT_GE(step, 20 + 2 * 3) << "three questions with transfers";
  EXPECT_LT(step, 20 + 5 * 3);
}

// Told again, a transfer is not another one, whatever is known of the clocks by then.
TEST(MeasuredTransfers, TransferToldTwice_CountsOnce) {
  MeasuredTransfers once, twice;
  for (int b = 0; b < 3; ++b) {
    const TransferKey key{TensorKind::kActivation, Job::Compute(0, 1, b, JobKind::kForward)};
    once.Add(0, 1, key, {1.0 * b, b + 0.5, 1000});
    twice.Add(0, 1, key, {1.0 * b, b + 0.5, 1000});
    twice.Add(0, 1, key, {b + 0.01, b + 0.51, 1000});
  }
  EXPECT_EQ(twice.directions().at({0, 1}).size(), 3u);
  EXPECT_EQ(LinksOf(twice, {}, {1, 1}).usual.bandwidth, LinksOf(once, {}, {1, 1}).usual.bandwidth);
  EXPECT_DOUBLE_EQ(LinksOf(once, {}, {1, 1}).usual.bandwidth, 2000);
  // Two of a size, each told twice, tell no time.
  MeasuredTransfers few;
  for (const double start : {0, 1, 0, 1}) {
    const Job consumer = Job::Compute(0, 1, static_cast<int32_t>(start), JobKind::kForward);
    few.Add(0, 1, {TensorKind::kActivation, consumer}, {start, start + 0.5, 1000});
  }
  EXPECT_EQ(LinksOf(few, {}, {1, 1}).usual.bandwidth, 0);
}

// Returns small tensors and large ones, each way, one after the other.
MeasuredTransfers TransfersOver(const MeasuredLink& link) {
  MeasuredTransfers transfers;
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    double end = 0;
    for (int b = 0; b < 8; ++b) {
      const int64_t bytes = b % 2 == 0 ? 1000 : 100'000;
      const double start = end + 1;
      end = start + link.SecondsOf(static_cast<double>(bytes));
      transfers.Add(from, to, {TensorKind::kActivation, Job::Compute(0, to, b, JobKind::kForward)},
                    {start, end, bytes});
    }
  }
  return transfers;
}

// Its small tensors take 80 times as long as before, its large ones 3.5 times.
TEST(LinksOf_SeveralSizes, SlowLink_HasItsLatencyAndBandwidth) {
  const MeasuredLink before{1e-3, 1e7}, now{0.1, 2e7};
  const RankLinks links = LinksOf(TransfersOver(now), TransfersOver(before), {1, 1});
  ASSERT_EQ(links.slow.size(), 1u);
  EXPECT_NEAR(links.slow[0].latency, now.latency, 1e-9);
  EXPECT_NEAR(links.slow[0].bandwidth, now.bandwidth, 1);
  EXPECT_NEAR(links.usual.latency, before.latency, 1e-9);
  EXPECT_NEAR(links.usual.bandwidth, before.bandwidth, 1);
}

// Two ranks on one link, which is as it was from the start.
TEST(LinksOf_TwoRanks, LinkSlowFromTheStart_ShowsBesideTheOneThatIsExpected) {
  const MeasuredLink slow{0.01, 1e5}, stated{1e-3, 1e7};
  const MeasuredTransfers transfers = TransfersOver(slow);
  EXPECT_TRUE(LinksOf(transfers, transfers, {1, 1}).slow.empty()) << "nothing to compare it with";
  const auto expected = [&](Rank, Rank) { return std::optional(stated); };
  const RankLinks links = LinksOf(transfers, transfers, {1, 1}, expected);
  ASSERT_EQ(links.slow.size(), 1u);
  EXPECT_GT(links.slow[0].times, 10);
  EXPECT_NEAR(links.slow[0].latency, slow.latency, 1e-9);
  EXPECT_EQ(links.usual.bandwidth, stated.bandwidth);
  EXPECT_EQ(links.usual.latency, stated.latency);
  EXPECT_TRUE(LinksOf(transfers, transfers, {1, 0.5}, expected).slow.empty()) << "the rank is slow";
  EXPECT_TRUE(LinksOf(TransfersOver(stated), {}, {1, 1}, expected).slow.empty());
}

std::shared_ptr<const RunSpec> WithNetwork(RunSpec run, const Json& network) {
  absl::Status status;
  run.network = ReadNetworkSpec(network, "network", status);
  EXPECT_TRUE(status.ok()) << status;
  return std::make_shared<const RunSpec>(std::move(run));
}

// The link of the first two is as slow as in the network of the run file, or slower.
TEST(AnswerOf_RunWithANetwork, LinkBetweenTwoRanks_IsComparedWithIt) {
  RunSpec run = RunUnder("ddp,ranks=2", 12);
  run.replan = {0.05, 4};
  const auto slow_with = [&](const Json& network) {
    WindowQuestion question;
    question.run = WithNetwork(run, network);
    question.jobs = JobsAt(run, {1, 1});
    question.transfers = TransfersOver({0.01, 2000});
    question.transfers_before = std::make_shared<const MeasuredTransfers>(question.transfers);
    const auto answer = AnswerOf(question);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer->better.slow_links && answer->better.gain() > 0.05;
  };
  EXPECT_TRUE(slow_with({{"bandwidth", 1e9}, {"latency", 1e-3}}));
  EXPECT_FALSE(slow_with({{"bandwidth", 2000}, {"latency", 0.01}}));
  EXPECT_FALSE(slow_with({{"latency", 1e-3}})) << "its bandwidth is not known";
  const Json between = {{"bandwidth", 2000}, {"latency", 0.01}};
  EXPECT_FALSE(slow_with({{"bandwidth", 1e9}, {"nodes", {1, 1}}, {"between", between}}));
  EXPECT_TRUE(slow_with({{"bandwidth", 1e9}, {"nodes", {2}}, {"between", between}}));
}

// Beside the link that the run has left there is one between two nodes, as the run file states it. A link
// inside a node is far faster.
TEST(AnswerOf_RunThatHasLeftALink, LinkThatTheNetworkStates_IsComparedWithThat) {
  const RunSpec run = RunUnder("custom,ranks=3,compute=s/2,order=1f1b", 12);
  const MeasuredLink between{0.01, 2000}, inside{1e-3, 20'000};
  const auto slow_with = [&](const Json& network) {
    WindowQuestion question;
    question.run = WithNetwork(run, network);
    question.jobs = JobsAt(run, {1, 1, 1});
    question.transfers = TransfersOver(between);
    question.transfers_before = std::make_shared<const MeasuredTransfers>();
    question.left = {inside, {{{1, 2, 20, 1}, 1000}}, {}};
    const auto answer = AnswerOf(question);
    EXPECT_TRUE(answer.ok()) << answer.status();
    std::vector<std::pair<Rank, Rank>> slow;
    for (const SlowLink& link : answer->links.slow) slow.emplace_back(link.a, link.b);
    return slow;
  };
  const std::vector<std::pair<Rank, Rank>> left = {{1, 2}}, both = {{0, 1}, {1, 2}};
  const Json stated = {{"bandwidth", between.bandwidth}, {"latency", between.latency}};
  const Json network = {{"bandwidth", inside.bandwidth}, {"latency", inside.latency}};
  Json nodes = network;
  nodes["nodes"] = {1, 2};
  nodes["between"] = stated;
  EXPECT_EQ(slow_with(nodes), left);
  nodes["nodes"] = {2, 1};
  EXPECT_EQ(slow_with(nodes), both) << "it is inside a node";
  EXPECT_EQ(slow_with({{"latency", inside.latency}}), both) << "only the usual link of that time is known";
}

// The third rank has become half as fast, and does the stage of half the work. Without the link of the others
// it stands between them, and does a stage of all of it.
class LeavingALink : public WatchingLinks {
 protected:
  LeavingALink()
      : WatchingLinks(Run("custom,ranks=3,compute=s,order=1f1b", Json::array({2, 3, 1})), {2, 2, 1}) {}
  // Lets the run go on under the schedule of the last answer. Of so many attempts only the last one runs.
  void Move(int step, int32_t attempts = 1) {
    run_.schedule = last_->better.schedule;
    run_.replan.steps = 1;
    watch_.Replanned(std::make_shared<const RunSpec>(run_), step);
    watch_.Began(restarts_ += attempts);
  }
  // Moves the run to what suits the speeds, and then away from the link, with so many attempts. Returns the
  // step of that, -1 if it does not move.
  int Leave(int32_t attempts = 1) {
    if (const int step = Play(1, 0, 10); step >= 0) Move(step);
    if (const int step = Play(1, 10, 10, speeds_); step >= 0) Move(step);
    EXPECT_EQ(Play(1, 20, 20, speeds_), -1) << ToText(last_->better.schedule);
    const int step = Play(1000, 40, 20, speeds_);
    if (step >= 0) Move(step, attempts);
    return step;
  }
  int32_t restarts_ = 0;
  const std::vector<double> speeds_ = {1, 1, 0.5};
};

TEST_F(LeavingALink, NothingPassesOverItAnyMore_TheRunStays) {
  const int step = Leave();
  ASSERT_GE(step, 0);
  EXPECT_TRUE(last_->better.slow_links);
  passes_ = false;
  EXPECT_EQ(Play(1, step, 100, speeds_), -1) << ToText(last_->better.schedule);
}

// A coordinator that was started again has only what was stored.
TEST_F(LeavingALink, CoordinatorIsStartedAgain_TheRunStays) {
  const int step = Leave();
  ASSERT_GE(step, 0);
  const auto left = ReadLeftLinks(LeftLinksText(last_->links), 3);
  ASSERT_TRUE(left.ok()) << left.status();
  passes_ = false;
  watch_ = ReplanWatch(std::make_shared<const RunSpec>(run_), 3);
  watch_.Restore(restarts_, *left);
  watch_.Began(restarts_);
  EXPECT_EQ(Play(1, step, 100, speeds_), -1) << ToText(last_->better.schedule);
  ASSERT_EQ(last_->links.slow.size(), 1u) << "it counts as slow";
  EXPECT_EQ(last_->links.slow[0].times, left->slow[0].times);
  // With other processes it does not.
  watch_.Began(++restarts_);
  Play(1, step + 100, 10, speeds_);
  EXPECT_TRUE(last_->links.slow.empty());
}

TEST(LeftLinks, Text_IsReadAsItWasWritten) {
  RankLinks left;
  left.usual = {1e-3, 1e9};
  left.slow = {{{0, 1, 1.5e6, 0.25}, 7.5}, {{1, 2, 0, 0.125}, 3}};
  const auto read = ReadLeftLinks(LeftLinksText(left), 3);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(LeftLinksText(*read), LeftLinksText(left));
  ASSERT_EQ(read->slow.size(), 2u);
  EXPECT_EQ(read->slow[0].bandwidth, 1.5e6);
  EXPECT_EQ(read->slow[0].latency, 0.25);
  EXPECT_EQ(read->slow[1].b, 2);
  EXPECT_EQ(read->usual.bandwidth, 1e9);
  EXPECT_EQ(LeftLinksText({}), "");
  ASSERT_TRUE(ReadLeftLinks("", 3).ok());
  EXPECT_TRUE(ReadLeftLinks("", 3)->slow.empty());
}

TEST(LeftLinks, OtherText_IsRefused) {
  for (const char* text :
       {"{", "[]", "{}", R"({"slow": 1, "usual": {}})", R"({"slow": [], "usual": {"latency": 0}})",
        R"({"slow": [1], "usual": {"latency": 0, "bandwidth": 0}})",
        R"({"slow": [{"a": 1, "b": 0, "latency": 0, "bandwidth": 1, "times": 4}],
            "usual": {"latency": 0, "bandwidth": 0}})"})
    EXPECT_FALSE(ReadLeftLinks(text, 3).ok()) << text;
}

TEST(LeftLinks, RanksThatTheRunDoesNotHave_AreRefused) {
  const auto reads = [](const Json& a, const Json& b) {
    const Json link = {{"a", a}, {"b", b}, {"latency", 0}, {"bandwidth", 1}, {"times", 4}};
    const Json left = {{"slow", Json::array({link})}, {"usual", {{"latency", 0}, {"bandwidth", 0}}}};
    return ReadLeftLinks(left.dump(), 3).ok();
  };
  EXPECT_TRUE(reads(0, 2));
  EXPECT_FALSE(reads(0, 3));
  EXPECT_FALSE(reads(-1, 2));
  EXPECT_FALSE(reads(0, uint64_t{1} << 63));
  EXPECT_FALSE(reads(0, (int64_t{1} << 32) + 2));
  EXPECT_FALSE(reads(0, 1.5));
  EXPECT_FALSE(reads("0", 2));
}

TEST_F(LeavingALink, ItIsAsFastAsUsualAgain_TheRunMovesBack) {
  const int step = Leave();
  ASSERT_GE(step, 0);
  passes_ = false;
  EXPECT_EQ(Play(1, step, 20, speeds_), -1);
  passes_ = true;
  EXPECT_GE(Play(1, step + 20, 20, speeds_), 0);
  EXPECT_TRUE(last_->links.slow.empty());
}

TEST_F(LeavingALink, RanksThatAreElsewhere_HaveOtherLinks) {
  const int step = Leave();
  ASSERT_GE(step, 0);
  watch_.Began(++restarts_);
  passes_ = false;
  Play(1, step, 10, speeds_);
  ASSERT_TRUE(last_.ok()) << last_.status();
  EXPECT_TRUE(last_->links.slow.empty());
}

// A process dies before the attempt runs that would have had the ranks where they were.
TEST_F(LeavingALink, AttemptThatLeavesItNeverRuns_TheNextHasOtherLinks) {
  const int step = Leave(/*attempts=*/2);
  ASSERT_GE(step, 0);
  passes_ = false;
  Play(1, step, 10, speeds_);
  ASSERT_TRUE(last_.ok()) << last_.status();
  EXPECT_TRUE(last_->links.slow.empty());
}

TEST_F(WatchingLinks, LinkThatIsHardlySlower_DoesNotMoveTheRun) {
  EXPECT_EQ(Play(1, 0, 10), -1);
  EXPECT_EQ(Play(2, 10, 20), -1) << "not much slower than before";
}

TEST_F(WatchingLinks, SlowLinkForAWhile_DoesNotMoveTheRun) {
  EXPECT_EQ(Play(1, 0, 10), -1);
  EXPECT_EQ(Play(100, 10, 2), -1);
  EXPECT_EQ(Play(1, 12, 20), -1);
}

// The transfers of a rank that is slow take longer, and its links are not to blame.
TEST_F(WatchingLinks, SlowRank_HasNoSlowLinks) {
  EXPECT_EQ(Play(1, 0, 10), -1);
  Play(1, 10, 20, {0.2, 1, 1});
  ASSERT_TRUE(last_.ok()) << last_.status();
  EXPECT_TRUE(last_->links.slow.empty());
  EXPECT_LT(last_->measured.speeds[0], 0.5);
}

// An answer to a question of the attempt before is none.
TEST_F(Watching, AttemptThatIsOver_AnswersNothing) {
  std::optional<WindowQuestion> question;
  for (int step = 0; !question.has_value() && step < 10; ++step) {
    for (const Rank r : {0, 1}) watch_.JobEnded(r, Job::Compute(step, 0, 0, JobKind::kForward), 1 + r);
    question = watch_.StepEnded(step);
  }
  ASSERT_TRUE(question.has_value());
  watch_.Began(1);
  EXPECT_FALSE(watch_.Take(AnswerOf(*question)));
  EXPECT_GE(MovesBehind(&watch_, *run_, {1, 0.5}, 10, 20), 14);
}

}  // namespace
}  // namespace weft::replan_watch_test
