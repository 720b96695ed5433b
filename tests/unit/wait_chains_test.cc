// Tests what each rank of a run that stands still waits for, and where its chain of waits ends: over several
// schedules, each brought to a standstill by one rank that ends no further job.
#include "coordinator/core/wait_chains.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedules/families/families.h"
#include "tests/unit/second.h"
#include "tests/unit/without_terms.h"

namespace weft::wait_chains_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One attempt on one process for each rank, played without processes.
class StandingRun {
 public:
  StandingRun(const std::string& family, int stages, int microbatches,
              const std::map<std::string, std::string>& parameters = {},
              ReductionMode reduction = ReductionMode::kOrdered)
      : StandingRun(family, WithoutTerms(*MakeSchedule(family, parameters, stages, microbatches)),
                    reduction) {}
  StandingRun(const std::string& family, RunSchedule schedule,
              ReductionMode reduction = ReductionMode::kOrdered) {
    auto made = MakeRunPlan("run", family, std::move(schedule), 4, 0, reduction);
    EXPECT_TRUE(made.ok()) << made.status();
    plan_ = reduction == ReductionMode::kFast ? (*made)->fast : *made;
    queue_ = std::make_unique<WorkQueue>(plan_);
    watch_ = std::make_unique<RankWatch>(plan_->ranks());
    times_ = std::make_unique<JobTimes>(plan_->graph, 0);
    std::vector<int> member_of_rank;
    for (Rank rank = 0; rank < plan_->ranks(); ++rank) {
      members_.Add({static_cast<SessionId>(rank + 1), rank, absl::StrCat("p", rank)});
      member_of_rank.push_back(rank);
    }
    members_.Lease(member_of_rank, &numbers_);
    silences.resize(plan_->ranks());
  }

  // Ends all jobs that can be ended, in claim order, of which `ends` is true; of the rank `stopped` the first
  // so many alone.
  void Run(Rank stopped, int jobs, const std::function<bool(const Job&)>& ends = nullptr) {
    for (bool any = true; any;) {
      any = false;
      for (Rank rank = 0; rank < plan_->ranks(); ++rank) {
        std::vector<Job> granted;
        queue_->Grant(rank, 64, &granted);
        times_->Claimed(10 * kSecond, granted);
        while (rank != stopped || jobs > 0) {
          const std::vector<Job> first = queue_->InHand(rank, 1);
          if (first.empty() || !queue_->IsReady(first[0]) || (ends && !ends(first[0]))) break;
          End(rank, first[0]);
          jobs -= rank == stopped ? 1 : 0;
          any = true;
        }
      }
    }
  }
  void End(Rank rank, const Job& job, int64_t at = 10 * kSecond) {
    ASSERT_EQ(queue_->Complete(rank, {job, 1, 2}), WorkQueue::Outcome::kDone) << Describe(job);
    times_->Ended(at, job);
    watch_->Ended(at, rank);
  }
  Job First(Rank rank) const { return queue_->InHand(rank, 1).at(0); }
  void Report(Rank rank, weft::Report report, int64_t now = 30 * kSecond) {
    watch_->Take(now, {rank}, report);
  }
  // The rank's process said twice for what it was idle.
  void ReportIdle(Rank rank, const std::string& cause) {
    for (const double seconds : {1.0, 2.0}) {
      RankReport report;
      report.rank = rank;
      report.idle_seconds = {{"no_work", 5}, {cause, seconds}};
      Report(rank, {1, {report}});
    }
  }
  WorkQueue& queue() { return *queue_; }
  RunMember& member(Rank rank) { return *members_.Find(rank + 1); }

  RunWaits Ask() const {
    RunWaits waits;
    AddWaits({30 * kSecond, kSecond, plan_->graph, *queue_, members_, *watch_, *times_, silences, holds},
             &waits);
    return waits;
  }

  std::vector<MemberSilence> silences;
  std::string holds;

 private:
  std::shared_ptr<const RunPlan> plan_;
  std::unique_ptr<WorkQueue> queue_;
  std::unique_ptr<RankWatch> watch_;
  std::unique_ptr<JobTimes> times_;
  RunMembers members_;
  FencingNumbers numbers_;
};

// Returns "0 waits B s0 m0 t0 for 20 <- input_gradient of B s1 m0 t0 of 1 => 0" for each rank.
std::vector<std::string> Lines(const RunWaits& waits) {
  std::vector<std::string> lines;
  for (const RankWait& w : waits.ranks) {
    std::string line = absl::StrCat(w.rank, " ", w.does);
    if (w.job.has_value()) absl::StrAppend(&line, " ", JobName(*w.job));
    absl::StrAppend(&line, " for ", w.for_ns / kSecond);
    if (w.missing.has_value()) {
      absl::StrAppend(&line, " <- ", TensorKindName(w.missing->tensor), " of ", JobName(w.missing->maker),
                      " of ", w.missing->rank);
    }
    if (w.further > 0) absl::StrAppend(&line, " +", w.further);
    if (w.root >= 0) absl::StrAppend(&line, " => ", w.root);
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> Roots(const RunWaits& waits) {
  std::vector<std::string> roots;
  for (const WaitRoot& root : waits.roots) roots.push_back(absl::StrCat(root.kind, ": ", root.sentence));
  return roots;
}

TEST(WaitChains, SilentProcessInOneForwardOneBackward_IsTheOneRoot) {
  StandingRun run("1f1b", 4, 4);
  run.Run(2, 3);
  run.silences[2] = {true, 12 * kSecond};
  const RunWaits waits = run.Ask();
  EXPECT_EQ(waits.still_ns, 20 * kSecond);
  EXPECT_THAT(Roots(waits), ElementsAre("silent: p2 has said nothing for 12 s"));
  EXPECT_THAT(waits.ranks[0].chain, ElementsAre(1, 2));
  EXPECT_THAT(waits.ranks[2].chain, IsEmpty());
  EXPECT_THAT(Lines(waits), ElementsAre("0 waits B s0 m1 t0 for 20 <- input_gradient of B s1 m1 t0 of 1 => 0",
                                        "1 waits B s1 m1 t0 for 20 <- input_gradient of B s2 m1 t0 of 2 => 0",
                                        "2 silent for 12 => 0",
                                        "3 waits F s3 m2 t0 for 20 <- activation of F s2 m2 t0 of 2 => 0"));
}

// The first stage adds up the norms of all, so the rank before the silent one in the pipeline waits for the
// first rank, and that for the silent one.
TEST(WaitChains, SilentProcessBeforeItsNorm_IsTheRootOfAllUpdates) {
  RunSchedule schedule = WithoutTerms(*MakeSchedule("1f1b", {}, 4, 4));
  schedule.terms.takes_norm = true;
  StandingRun run("1f1b", std::move(schedule));
  run.Run(2, 8);
  run.silences[2] = {true, 12 * kSecond};
  const RunWaits waits = run.Ask();
  EXPECT_THAT(Roots(waits), ElementsAre("silent: p2 has said nothing for 12 s"));
  EXPECT_THAT(waits.ranks[1].chain, ElementsAre(0, 2));
  EXPECT_THAT(Lines(waits),
              ElementsAre("0 waits R s0 t0 for 20 <- norm of R s2 t0 of 2 => 0",
                          "1 waits U s1 t0 for 20 <- norm of R s0 t0 of 0 => 0", "2 silent for 12 => 0",
                          "3 waits U s3 t0 for 20 <- norm of R s0 t0 of 0 => 0"));
}

TEST(WaitChains, RankThatComputesInOneForwardOneBackward_IsTheRootOfAllOthers) {
  StandingRun run("1f1b", 4, 4);
  run.Run(1, 5);
  const Job job = run.First(1);
  run.Report(1, {1, {}, {{1, job, 8 * kSecond}}}, 29 * kSecond);
  const RunWaits waits = run.Ask();
  EXPECT_THAT(Roots(waits),
              ElementsAre(absl::StrCat("job: rank 1 has computed ", JobName(job), " for 9 s, on p1")));
  EXPECT_THAT(Lines(waits), ElementsAre("0 waits B s0 m1 t0 for 20 <- input_gradient of B s1 m1 t0 of 1 => 0",
                                        "1 computes B s1 m1 t0 for 9",
                                        "2 waits F s2 m0 t1 for 20 <- activation of F s1 m0 t1 of 1 => 0",
                                        "3 waits F s3 m0 t1 for 20 <- activation of F s2 m0 t1 of 2 => 0"));
}

TEST(WaitChains, SlowRankOfDataParallel_TheOthersWaitForItsGradients) {
  StandingRun run("ddp", 2, 4, {{"ranks", "4"}});
  run.Run(3, 1);
  const Job job = run.First(3);
  run.Report(3, {1, {}, {{3, job, 2 * kSecond}}});
  const RunWaits waits = run.Ask();
  EXPECT_THAT(Roots(waits),
              ElementsAre(absl::StrCat("job: rank 3 has computed ", JobName(job), " for 2 s, on p3")));
  EXPECT_THAT(Lines(waits), ElementsAre("0 waits R s1 t0 for 20 <- gradient of B s1 m3 t0 of 3 => 0",
                                        "1 waits R s1 t0 for 20 <- gradient of B s1 m3 t0 of 3 => 0",
                                        "2 waits R s1 t0 for 20 <- gradient of B s1 m3 t0 of 3 => 0",
                                        "3 computes F s1 m3 t0 for 2"));
}

// The devices of ranks 0 to 2 are in a collective that rank 3 has not begun.
TEST(WaitChains, CollectiveThatAMemberHasNotBegun_EndsAtWhatThatDoes) {
  StandingRun run("ddp", 2, 4, {{"ranks", "4"}}, ReductionMode::kFast);
  run.Run(3, 1);
  for (const Rank rank : {0, 1, 2})
    run.Report(rank, {1, {}, {}, {{rank, Job::Reduce(0, 1, rank), 5 * kSecond, 100}}});
  const Job job = run.First(3);
  run.Report(3, {1, {}, {{3, job, 2 * kSecond}}});
  const RunWaits computes = run.Ask();
  EXPECT_THAT(Roots(computes),
              ElementsAre(absl::StrCat("job: rank 3 has computed ", JobName(job), " for 2 s, on p3")));
  EXPECT_THAT(Lines(computes), ElementsAre("0 collective R s1 t0 for 5 <- order of B s1 m3 t0 of 3 => 0",
                                           "1 collective R s1 t0 for 5 <- order of B s1 m3 t0 of 3 => 0",
                                           "2 collective R s1 t0 for 5 <- order of B s1 m3 t0 of 3 => 0",
                                           "3 computes F s1 m3 t0 for 2"));
  EXPECT_THAT(computes.ranks[0].chain, ElementsAre(3));
  run.silences[3] = {true, 4 * kSecond};
  EXPECT_THAT(Roots(run.Ask()), ElementsAre("silent: p3 has said nothing for 4 s"));
}

TEST(WaitChains, CollectiveThatAllHaveBegun_IsItsOwnRoot) {
  StandingRun run("ddp", 1, 2, {{"ranks", "2"}}, ReductionMode::kFast);
  run.Run(-1, 0, [](const Job& job) { return HasMicrobatch(job.kind); });
  for (const Rank rank : {0, 1})
    run.Report(rank, {1, {}, {}, {{rank, Job::Reduce(0, 0, rank), 5 * kSecond, 100}}});
  const RunWaits waits = run.Ask();
  EXPECT_THAT(Roots(waits),
              ElementsAre("collective: all members have begun the collective of R s0 t0; rank 0 has "
                          "been in it for 5 s"));
  EXPECT_THAT(Lines(waits),
              ElementsAre("0 collective R s0 t0 for 5 => 0", "1 collective R s0 t0 for 5 => 0"));
}

// All members are in a collective, and the last is in none: each of the others waits for that one.
TEST(WaitChains, CollectiveOfManyRanks_WaitsForTheOneMemberThatHasNotBegunIt) {
  constexpr int kRanks = 512;
  StandingRun run("ddp", 1, kRanks, {{"ranks", absl::StrCat(kRanks)}}, ReductionMode::kFast);
  run.Run(-1, 0, [](const Job& job) { return HasMicrobatch(job.kind); });
  for (Rank rank = 0; rank + 1 < kRanks; ++rank)
    run.Report(rank, {1, {}, {}, {{rank, Job::Reduce(0, 0, rank), 5 * kSecond, 100}}});
  const RunWaits waits = run.Ask();
  EXPECT_THAT(Roots(waits),
              ElementsAre("unknown: rank 511 has waited for 20 s to start R s0 t0, whose inputs "
                          "are all made"));
  for (const RankWait& wait : waits.ranks) EXPECT_EQ(wait.root, 0) << wait.rank;
}

// Rank 0 has ended the first collective of the step, and is in the second; rank 1 is still in the first.
TEST(WaitChains, MemberThatIsInAnotherCollective_HasNotBegunThisOne) {
  StandingRun run("ddp", 2, 2, {{"ranks", "2"}}, ReductionMode::kFast);
  run.Run(-1, 0, [](const Job& job) { return HasMicrobatch(job.kind); });
  for (const Rank rank : {0, 1}) run.End(rank, Job::Compute(0, 0, rank, JobKind::kBackward));
  run.Report(0, {1, {}, {}, {{0, Job::Reduce(0, 0, 0), 5 * kSecond, 100}}});
  run.Report(1, {1, {}, {}, {{1, Job::Reduce(0, 1, 1), 9 * kSecond, 100}}});
  const std::string root =
      "collective: all members have begun the collective of R s1 t0; rank 1 has been in it for 9 s";
  EXPECT_THAT(run.Ask().ranks[0].chain, ElementsAre(1)) << "no input names that rank";
  EXPECT_THAT(Roots(run.Ask()), ElementsAre(root)) << "a later collective shows that the first has ended";
  EXPECT_EQ(run.Ask().ranks[0].root, 0);
  run.End(0, Job::Reduce(0, 1, 0));
  EXPECT_THAT(Roots(run.Ask()), ElementsAre(root));
}

// Rank 1 waits for a backward of rank 0, whose device is in another collective.
TEST(WaitChains, RankInACollectiveThatIsWantedForAnotherJob_IsAskedForThatJob) {
  StandingRun run("ddp", 2, 2, {{"ranks", "2"}}, ReductionMode::kFast);
  run.Run(-1, 0, [&](const Job& job) {
    return HasMicrobatch(job.kind) && !(job.kind == JobKind::kBackward && job.stage == 0);
  });
  run.End(1, Job::Compute(0, 0, 1, JobKind::kBackward));
  run.Report(0, {1, {}, {}, {{0, Job::Reduce(0, 1, 0), 5 * kSecond, 100}}});
  run.Report(1, {1, {}, {}, {{1, Job::Reduce(0, 0, 1), 4 * kSecond, 100}}});
  EXPECT_THAT(
      Roots(run.Ask()),
      ElementsAre("collective: all members have begun the collective of R s1 t0; rank 0 has been in it "
                  "for 5 s",
                  "unknown: rank 0 has waited for 20 s to start B s0 m0 t0, whose inputs are all made"));
}

// The devices wait for each other in a collective, and no tensor is sent for it.
TEST(WaitChains, CollectiveThatDoesNotBegin_IsNotHeldUpByWhatASilentMemberHasDone) {
  StandingRun run("ddp", 1, 2, {{"ranks", "2"}}, ReductionMode::kFast);
  run.Run(-1, 0, [](const Job& job) { return HasMicrobatch(job.kind); });
  run.silences[1] = {true, 6 * kSecond};
  EXPECT_THAT(Roots(run.Ask()),
              ElementsAre("unknown: rank 0 has waited for 20 s to start R s0 t0, whose inputs are all made",
                          "silent: p1 has said nothing for 6 s"));
}

TEST(WaitChains, BrokenSession_SaysWhyItBroke) {
  StandingRun run("gpipe", 2, 2);
  run.Run(1, 0);
  run.silences[1] = {false, 2 * kSecond, "connection reset"};
  EXPECT_THAT(Roots(run.Ask()),
              ElementsAre("broken: p1 has said nothing for 2 s; its session is broken: connection reset"));
  EXPECT_EQ(run.Ask().ranks[1].does, "broken");
}

// All inputs of a job are made, and its rank does not begin it.
TEST(WaitChains, ReadyJobThatDoesNotStart_NamesWhatItsRankWasIdleFor) {
  StandingRun run("gpipe", 2, 2);
  run.Run(1, 0);
  const std::string what = "rank 1 has waited for 20 s to start F s1 m0 t0, whose inputs are all made";
  EXPECT_THAT(Roots(run.Ask()), ElementsAre("unknown: " + what));
  run.ReportIdle(1, "dependency");
  EXPECT_THAT(Roots(run.Ask()), ElementsAre("transfer: " + what + "; one of them is on its way"));
  run.ReportIdle(1, "limit");
  EXPECT_THAT(Roots(run.Ask()), ElementsAre("limit: " + what + "; the limit of activations does not let it"));
  run.ReportIdle(1, "memory");
  EXPECT_THAT(Roots(run.Ask()), ElementsAre("memory: " + what + "; the memory budget does not let it"));
  run.member(1).stalled = "waiting for activation from p0";
  EXPECT_THAT(Roots(run.Ask()), ElementsAre("link: " + what + "; p1: waiting for activation from p0"));
  // The tensor is made, and its process cannot send it any more.
  run.silences[0] = {true, 7 * kSecond};
  EXPECT_THAT(Roots(run.Ask()), ElementsAre("silent: p0 has said nothing for 7 s"));
  EXPECT_THAT(run.Ask().ranks[1].chain, ElementsAre(0));
}

// A job that a worker has begun just now is in no report yet.
TEST(WaitChains, JobThatBecameReadyJustNow_IsAboutToBegin) {
  StandingRun run("gpipe", 2, 1);
  run.Run(0, 0);
  run.End(0, run.First(0), 29 * kSecond);
  EXPECT_THAT(Roots(run.Ask()), ElementsAre("job: rank 1 begins F s1 m0 t0 on p1"));
  EXPECT_THAT(Lines(run.Ask()),
              ElementsAre("0 waits B s0 m0 t0 for 1 <- input_gradient of B s1 m0 t0 of 1 => 0",
                          "1 begins F s1 m0 t0 for 1"));
}

TEST(WaitChains, HeldForACheckpoint_SaysForWhich) {
  StandingRun run("gpipe", 2, 2);
  run.queue().SetHold(1);
  run.Run(-1, 0);
  run.holds = "the checkpoint of step 1 from p0";
  const RunWaits waits = run.Ask();
  EXPECT_THAT(Roots(waits), ElementsAre("checkpoint: F s0 m0 t1 is held back from rank 0 for the checkpoint "
                                        "of step 1 from p0"));
  EXPECT_THAT(Lines(waits), ElementsAre("0 waits F s0 m0 t1 for 20 => 0",
                                        "1 waits F s1 m0 t1 for 20 <- activation of F s0 m0 t1 of 0 => 0"));
}

TEST(WaitChains, ProcessThatAsksForNoJobs_IsTheRoot) {
  StandingRun run("gpipe", 2, 2);
  const std::string root = "credit: p0 asks for no more jobs of rank 0; the next would be F s0 m0 t0";
  EXPECT_THAT(Roots(run.Ask()), ElementsAre(root));
  run.holds = "the checkpoint of step 1 from p0";
  EXPECT_THAT(Roots(run.Ask()), ElementsAre(root)) << "a checkpoint that is being saved holds no step back";
}

TEST(WaitChains, RunThatIsDone_HasNoRoot) {
  StandingRun run("1f1b", 2, 2);
  run.Run(-1, 0);
  const RunWaits waits = run.Ask();
  EXPECT_THAT(waits.roots, IsEmpty());
  EXPECT_THAT(Lines(waits), ElementsAre("0 done for 20", "1 done for 20"));
}

// A job of a report that has ended since is none that runs.
TEST(WaitChains, ReportOlderThanTheEndOfItsJob_DoesNotCount) {
  StandingRun run("gpipe", 1, 2);
  run.Run(0, 0);
  const Job job = run.First(0);
  run.Report(0, {1, {}, {{0, job, kSecond}}});
  EXPECT_EQ(run.Ask().ranks[0].does, "computes");
  run.End(0, job);
  EXPECT_EQ(run.Ask().ranks[0].does, "waits");
}

TEST(WaitChains, RankThatRunsTwoJobs_ShowsTheOlder) {
  StandingRun run("gpipe", 1, 2);
  run.Run(0, 0);
  const std::vector<Job> jobs = run.queue().InHand(0, 2);
  const RunningJob older{0, jobs[0], 9 * kSecond}, younger{0, jobs[1], kSecond};
  for (const std::vector<RunningJob>& named : {std::vector<RunningJob>{older, younger}, {younger, older}}) {
    run.Report(0, {1, {}, named});
    EXPECT_EQ(run.Ask().ranks[0].job, jobs[0]);
    EXPECT_EQ(run.Ask().ranks[0].for_ns, 9 * kSecond);
  }
}

TEST(WaitChains, ReportOfJobsThatTheRankHasNot_ChangesNothing) {
  StandingRun run("gpipe", 2, 2);
  run.Run(1, 0);
  const std::vector<std::string> before = Lines(run.Ask());
  for (const Job& job : {Job::Compute(0, 9, 0, JobKind::kForward), Job::Compute(-1, 1, 0, JobKind::kForward),
                         Job::Reduce(0, 1, 7), Job::Compute(4, 1, 0, JobKind::kForward)}) {
    run.Report(1, {1, {}, {{1, job, kSecond}}, {{1, job, kSecond, 1}}});
    EXPECT_EQ(Lines(run.Ask()), before) << Describe(job);
  }
}

TEST(WaitChains, AnyRankOfAnyFamilyFallsSilent_EveryOtherRankWaitsForIt) {
  const std::pair<const char*, std::map<std::string, std::string>> families[] = {
      {"1f1b", {}},   {"gpipe", {}}, {"interleaved", {{"ranks", "2"}}}, {"dualpipe_v", {}},
      {"v_half", {}}, {"v_min", {}}, {"ddp", {{"ranks", "4"}}},         {"fsdp", {}}};
  for (const auto& [family, parameters] : families) {
    const int ranks = MakeSchedule(family, parameters, 4, 4)->ranks;
    for (Rank silent = 0; silent < ranks; ++silent) {
      StandingRun run(family, 4, 4, parameters);
      run.Run(silent, 3);
      run.silences[silent] = {true, 9 * kSecond};
      const RunWaits waits = run.Ask();
      ASSERT_THAT(waits.roots, SizeIs(1)) << family << " " << silent;
      EXPECT_EQ(waits.roots[0].kind, "silent") << family;
      EXPECT_EQ(waits.roots[0].process, silent) << family;
      for (const RankWait& wait : waits.ranks) EXPECT_EQ(wait.root, 0) << family << " " << wait.rank;
    }
  }
}

TEST(JobName, EachKind_IsItsLetterAndItsNumbers) {
  EXPECT_EQ(JobName(Job::Compute(17, 2, 3, JobKind::kForward)), "F s2 m3 t17");
  EXPECT_EQ(JobName(Job::Compute(17, 2, 3, JobKind::kBackwardWeight)), "W s2 m3 t17");
  EXPECT_EQ(JobName(Job::Reduce(17, 2, 1)), "R s2 t17");
}

}  // namespace
}  // namespace weft::wait_chains_test
