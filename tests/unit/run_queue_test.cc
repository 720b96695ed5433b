// The table of runs and the queue of those that wait, without sessions or messages.
#include "coordinator/core/run_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::run_queue_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunQueueTest : public ::testing::Test {
 protected:
  static SubmitRun Submission(int stages, const std::string& request = "") {
    return {
        0,    request, *MakeRunPlan("run", "gpipe", WithoutTerms(*MakeSchedule("gpipe", {}, stages, 1)), 1),
        "{}", 0,       ""};
  }
  absl::StatusOr<uint64_t> TrySubmit(SubmitRun submission) {
    uint64_t id = 0;
    if (absl::Status s = runs.Submit(out, submission, &id); !s.ok()) return s;
    return id;
  }
  uint64_t Submit(int stages, QueueTerms terms = {}) {
    SubmitRun submission = Submission(stages);
    submission.terms = std::move(terms);
    return TrySubmit(std::move(submission)).value();
  }
  uint64_t SubmitOf(const std::string& owner) { return Submit(1, {0, "", owner}); }
  void Join(SessionId session, const std::string& pool = "") {
    Worker& worker = workers.Open(session, kNever);
    worker.greeted = true;
    worker.process = static_cast<int32_t>(session) - 1;
    worker.hello.worker = absl::StrCat("w", session);
    worker.hello.pool = pool;
  }
  // Makes a pass, and returns the runs that started.
  std::vector<uint64_t> Pass() {
    std::vector<uint64_t> started;
    while (auto admitted = queue.Next(out)) {
      admitted->run->Start(out, admitted->workers, &numbers);
      runs.File(*admitted->run);
      for (Worker* w : admitted->workers) w->run = admitted->run->id();
      started.push_back(admitted->run->id());
    }
    return started;
  }
  const std::string& ReasonOf(uint64_t run) { return runs.Find(run)->info().reason; }
  void End(uint64_t run) {
    runs.Find(run)->Cancel("");
    runs.Find(run)->Close(out);
    runs.Retire(out, run);
    for (auto& [session, worker] : workers.all()) worker.run = worker.run == run ? 0 : worker.run;
  }

  CoreOptions options;
  RunTable runs{options};
  WorkerTable workers;
  RunQueue queue{&runs, &workers};
  FencingNumbers numbers;
  StepEffects out;
};

TEST_F(RunQueueTest, RunThatWaitsForItsTurn_HoldsBackThoseBehindIt) {
  for (const SessionId session : {1, 2}) Join(session);
  const uint64_t first = Submit(1), second = Submit(2), third = Submit(1);
  EXPECT_THAT(Pass(), ElementsAre(first));
  EXPECT_THAT(ReasonOf(second), HasSubstr("needs 2 worker processes, 1 is free (2 connected)"));
  EXPECT_THAT(ReasonOf(third), HasSubstr(absl::StrCat("behind run ", second)));
  EXPECT_EQ(runs.Find(second)->next_due(), kNever) << "it waits for its turn";
  End(first);
  EXPECT_THAT(Pass(), ElementsAre(second));
}

TEST_F(RunQueueTest, RunThatNeedsMoreWorkersThanAreConnected_LetsOthersPassAndHasADeadline) {
  Join(1);
  const uint64_t large = Submit(3), small = Submit(1);
  EXPECT_THAT(Pass(), ElementsAre(small));
  EXPECT_EQ(runs.Find(large)->next_due(), options.waiting_ns);
  out.now = 5;
  for (const SessionId session : {2, 3}) Join(session);
  EXPECT_THAT(Pass(), IsEmpty());
  EXPECT_EQ(runs.Find(large)->next_due(), kNever) << "as many are connected as it needs";
  End(small);
  EXPECT_THAT(Pass(), ElementsAre(large));
}

TEST_F(RunQueueTest, RunOfAHigherPriority_StartsBeforeThoseThatWaitedLonger) {
  Join(1);
  const uint64_t running = Submit(1);
  EXPECT_THAT(Pass(), ElementsAre(running));
  const uint64_t low = Submit(1, {-5, "", ""}), first = Submit(1), second = Submit(1),
                 high = Submit(1, {7, "", ""});
  EXPECT_THAT(Pass(), IsEmpty());
  EXPECT_THAT(ReasonOf(first), HasSubstr(absl::StrCat("behind run ", high)));
  uint64_t present = running;
  for (const uint64_t next : {high, first, second, low}) {
    End(present);
    EXPECT_THAT(Pass(), ElementsAre(next));
    present = next;
  }
}

TEST_F(RunQueueTest, RunThatBeginsAgain_ComesBeforeAHigherPriority) {
  Join(1);
  SubmitRun low = Submission(1);
  low.terms.priority = -5;
  auto plan = std::make_shared<RunPlan>(*low.plan);
  plan->restarts = 3;
  low.plan = std::move(plan);
  const uint64_t begun = TrySubmit(std::move(low)).value();
  EXPECT_THAT(Pass(), ElementsAre(begun));
  const uint64_t high = Submit(1, {7, "", ""});
  EXPECT_THAT(Pass(), IsEmpty());
  runs.Find(begun)->EndAttempt("a process is lost", RestartCause::kProcessLost);
  runs.Find(begun)->Restart(out);
  runs.File(*runs.Find(begun));
  workers.Find(1)->run = 0;
  EXPECT_THAT(Pass(), ElementsAre(begun));
  End(begun);
  EXPECT_THAT(Pass(), ElementsAre(high));
}

TEST_F(RunQueueTest, OwnersOfManyRuns_ShareTheWorkersWithThoseOfFew) {
  for (const SessionId session : {1, 2, 3, 4}) Join(session);
  const uint64_t a1 = SubmitOf("alice"), a2 = SubmitOf("alice"), a3 = SubmitOf("alice"),
                 a4 = SubmitOf("alice");
  const uint64_t b1 = SubmitOf("bob"), b2 = SubmitOf("bob");
  EXPECT_THAT(Pass(), ElementsAre(a1, b1, a2, b2));
  End(a1);
  EXPECT_THAT(Pass(), ElementsAre(a3)) << "bob has no run that waits";
  const uint64_t c1 = SubmitOf("carol");
  End(b1);
  EXPECT_THAT(Pass(), ElementsAre(c1)) << "carol has no process, alice two";
  End(b2);
  EXPECT_THAT(Pass(), ElementsAre(a4));
}

TEST_F(RunQueueTest, Pool_IsServedByItsOwnWorkersAlone) {
  Join(1);
  Join(2, "large");
  const uint64_t two = Submit(2, {0, "large", ""}), plain = Submit(1), large = Submit(1, {0, "large", ""});
  EXPECT_THAT(Pass(), ElementsAre(plain, large));
  EXPECT_THAT(ReasonOf(two), HasSubstr("needs 2 worker processes of pool large, 0 are free (1 connected)"));
  const uint64_t next = Submit(1);
  EXPECT_THAT(Pass(), IsEmpty());
  Join(3, "large");
  EXPECT_THAT(Pass(), IsEmpty()) << "two are connected, one is busy";
  EXPECT_EQ(runs.Find(two)->next_due(), kNever) << "it waits for its turn";
  const uint64_t behind = Submit(1, {0, "large", ""});
  EXPECT_THAT(Pass(), IsEmpty());
  EXPECT_THAT(ReasonOf(behind), HasSubstr(absl::StrCat("behind run ", two)));
  End(plain);
  EXPECT_THAT(Pass(), ElementsAre(next)) << "who waits for another pool holds back nobody here";
  End(large);
  EXPECT_THAT(Pass(), ElementsAre(two));
}

TEST_F(RunQueueTest, PassWithoutAChange_LooksAtNoRun) {
  const uint64_t run = Submit(1);
  EXPECT_THAT(Pass(), IsEmpty());
  EXPECT_EQ(runs.Find(run)->state(), RunState::kWaiting);
  out.effects = {};
  EXPECT_THAT(Pass(), IsEmpty());
  EXPECT_THAT(out.effects.runs, IsEmpty());
  Join(1);
  EXPECT_THAT(Pass(), ElementsAre(run));
}

// A queue costs no more the longer it is: what happens at its head is told to those near it alone.
TEST_F(RunQueueTest, HeadOfALongQueueStarts_ChangesOnlyTheRunsNearIt) {
  constexpr size_t kRuns = 10 * RunQueue::kExact;
  Join(1);
  std::vector<uint64_t> all;
  for (size_t i = 0; i < kRuns; ++i) all.push_back(Submit(1));
  EXPECT_THAT(Pass(), ElementsAre(all[0]));
  EXPECT_THAT(ReasonOf(all[2]),
              HasSubstr(absl::StrCat("behind run ", all[1], "; needs 1 worker process, 0")));
  EXPECT_THAT(ReasonOf(all[kRuns - 1]), HasSubstr("behind at least 32 other runs; needs 1 worker process"));
  for (size_t i = 0; i + 1 < kRuns; ++i) {
    End(all[i]);
    out.Take();
    ASSERT_THAT(Pass(), ElementsAre(all[i + 1]));
    ASSERT_LE(out.effects.runs.size(), RunQueue::kExact + 2);
  }
}

TEST_F(RunQueueTest, ManyRunsThatNeedMoreThanAreConnected_AreToldWhatStaysTrue) {
  constexpr size_t kRuns = 10 * RunQueue::kExact;
  std::vector<uint64_t> all;
  for (size_t i = 0; i < kRuns; ++i) all.push_back(Submit(3));
  EXPECT_THAT(Pass(), IsEmpty());
  out.Take();
  Join(1);
  EXPECT_THAT(Pass(), IsEmpty());
  EXPECT_EQ(out.effects.runs.size(), RunQueue::kExact);
  EXPECT_THAT(ReasonOf(all[0]),
              HasSubstr("needs 3 worker processes, 1 is free (1 connected); start 2 more workers, or "
                        "submit the run with --processes 1"));
  EXPECT_THAT(ReasonOf(all[kRuns - 1]), HasSubstr("needs 3 worker processes, more than are connected"));
  EXPECT_EQ(runs.waiting().dues().earliest(), options.waiting_ns);
  for (const SessionId session : {2, 3}) Join(session);
  EXPECT_THAT(Pass(), ElementsAre(all[0]));
  EXPECT_EQ(runs.waiting().dues().earliest(), kNever) << "the others wait for their turn";
  EXPECT_THAT(ReasonOf(all[kRuns - 1]), HasSubstr("behind at least"));
}

// Runs and workers come and go at random; each run that starts is the first by priority, owner and number of
// those that fit.
TEST_F(RunQueueTest, AnyRuns_StartInTheOrderThatTheRuleSays) {
  std::mt19937 random(5);
  const auto draw = [&](int most) { return static_cast<int>(random() % most); };
  for (const SessionId session : {1, 2, 3}) Join(session);
  std::map<uint64_t, RunInfo> waiting, running;
  for (int i = 0; i < 2000; ++i) {
    const int runs_of_three = 1 + draw(4);  // some need more than are connected
    const uint64_t id =
        Submit(runs_of_three, {draw(3), "", std::string(1, static_cast<char>('a' + draw(4)))});
    waiting.emplace(id, runs.Find(id)->info());
    if (draw(3) > 0 && !running.empty()) {
      const uint64_t ended = std::next(running.begin(), draw(static_cast<int>(running.size())))->first;
      End(ended);
      running.erase(ended);
    }
    while (auto admitted = queue.Next(out)) {
      std::map<std::string, int64_t> processes;
      for (const auto& [run, info] : running) processes[info.terms.owner] += info.processes;
      std::vector<std::tuple<int, int64_t, uint64_t>> fitting;
      for (const auto& [run, info] : waiting) {
        if (info.processes <= 3) fitting.emplace_back(-info.terms.priority, processes[info.terms.owner], run);
      }
      const uint64_t started = admitted->run->id();
      ASSERT_EQ(started, std::get<uint64_t>(*std::min_element(fitting.begin(), fitting.end())));
      admitted->run->Start(out, admitted->workers, &numbers);
      runs.File(*admitted->run);
      for (Worker* w : admitted->workers) w->run = started;
      running.insert(waiting.extract(started));
    }
    out.Take();
  }
  EXPECT_GT(running.rbegin()->first, 300u);
}

TEST_F(RunQueueTest, RepeatedRequest_IsTheSameRunUntilItIsForgotten) {
  options.runs_kept = 1;
  const uint64_t first = TrySubmit(Submission(1, "name")).value();
  EXPECT_EQ(TrySubmit(Submission(1, "name")).value(), first);
  SubmitRun other = Submission(1, "name");
  other.spec = "{\"other\": 1}";
  EXPECT_EQ(TrySubmit(std::move(other)).status().code(), absl::StatusCode::kAlreadyExists);
  End(first);
  EXPECT_TRUE(runs.KnowsRequest("name"));
  End(Submit(1));
  EXPECT_FALSE(runs.KnowsRequest("name"));
  EXPECT_EQ(runs.Find(first), nullptr);
  EXPECT_EQ(runs.Info(first).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RunQueueTest, ReservedNumber_IsGivenBackOnlyIfNoneFollowed) {
  const uint64_t reserved = runs.Reserve();
  runs.Return(reserved);
  EXPECT_EQ(runs.Reserve(), reserved);
  const uint64_t next = runs.Reserve();
  runs.Return(reserved);
  EXPECT_EQ(runs.Reserve(), next + 1);
}

TEST_F(RunQueueTest, ClosedTable_TakesNoNewRunButAnswersForAnOldOne) {
  const uint64_t run = TrySubmit(Submission(1, "name")).value();
  runs.Close();
  EXPECT_EQ(TrySubmit(Submission(1, "name")).value(), run);
  EXPECT_EQ(TrySubmit(Submission(1)).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft::run_queue_test
