// Speeds from the times of jobs, and better schedules for them.
#include "coordinator/replanning/better_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "coordinator/replanning/measured_jobs.h"
#include "run/run_schedule.h"
#include "tests/unit/ranks_of_speeds.h"

namespace weft::better_schedule_test {
namespace {

// Returns how many forwards each rank has in a step.
std::vector<int> ForwardsOf(const RunSpec& run, const ScheduleSpec& schedule) {
  RunSpec under = run;
  under.schedule = schedule;
  const auto made = CheckedScheduleOf(under);
  EXPECT_TRUE(made.ok()) << made.status();
  std::vector<int> counts(made->scheme.ranks);
  for (int s = 0; s < run.stages(); ++s) {
    for (int b = 0; b < run.train.microbatches; ++b)
      ++counts[made->scheme.compute(Job::Compute(0, s, b, JobKind::kForward))];
  }
  return counts;
}

TEST(MeasuredJobs, RanksThatComputeTheSameStages_AreCompared) {
  const RunSpec run = RunUnder("ddp,ranks=2", 12);
  const RankCosts measured = CostsOfJobs(run, JobsAt(run, {1, 0.5}));
  EXPECT_NEAR(measured.speeds[0], 1, 1e-6);
  EXPECT_NEAR(measured.speeds[1], 0.5, 1e-6);
  EXPECT_NEAR(measured.duration[static_cast<int>(JobKind::kBackward)][3], 2, 1e-6);
}

// The blocks of a gpt are alike, so ranks that compute different ones are compared.
TEST(MeasuredJobs, RanksWithStagesOfEqualLayers_AreCompared) {
  const RunSpec run = RunUnder("interleaved,ranks=2", 4, Json::array({1, 1, 1, 1, 1, 1}));
  const RankCosts measured = CostsOfJobs(run, JobsAt(run, {0.5, 1}));
  EXPECT_NEAR(measured.speeds[0], 0.5, 1e-4);
  EXPECT_NEAR(measured.speeds[1], 1, 1e-4);
}

TEST(MeasuredJobs, RanksWithNothingInCommon_AreComparedWithWhatTheyDidBefore) {
  const RunSpec run = RunUnder("1f1b", 4, Json::array({2, 4}));
  const MeasuredJobs before = JobsAt(run, {1, 1}), jobs = JobsAt(run, {1, 0.5});
  EXPECT_NEAR(CostsOfJobs(run, jobs).speeds[1], 1, 1e-6);
  EXPECT_NEAR(CostsOfJobs(run, jobs, &before).speeds[1], 0.5, 1e-6);
}

TEST(BetterSchedule, MicrobatchesOfASlowRank_GoToTheFastOne) {
  const RunSpec run = RunUnder("ddp,ranks=2", 12);
  const BetterSchedule better = BetterAt(run, {1, 0.5});
  EXPECT_EQ(ForwardsOf(run, better.schedule), (std::vector<int>{8 * 6, 4 * 6}));
  EXPECT_NEAR(better.gain(), 1.0 / 3, 1e-3);
  // All work is 12 micro-batches of 18 s, and both ranks do 1.5 s of it in a second.
  EXPECT_NEAR(better.bound, 144, 1e-6);
  EXPECT_NEAR(better.step, better.bound, 1e-6);
}

TEST(BetterSchedule, StagesOfASlowRank_GoToTheFastOne) {
  const RunSpec run = RunUnder("custom,ranks=2,compute=s < 3 ? 0 : 1,order=1f1b", 12);
  const BetterSchedule better = BetterAt(run, {1, 0.5});
  EXPECT_EQ(ForwardsOf(run, better.schedule), (std::vector<int>{12 * 4, 12 * 2}));
  EXPECT_GT(better.gain(), 0.2);
  EXPECT_GE(better.step, better.bound);
}

// Returns what is better on equally fast ranks with this link between the first two.
BetterSchedule BetterWithLink(const RunSpec& run, const PairLink& link, int ranks) {
  const RankCosts measured = CostsOfJobs(run, JobsAt(run, std::vector<double>(ranks, 1)));
  ReplanQuestion question{run, measured, MeasuredLink{}, {link}};
  auto better = FindBetterSchedule(question);
  EXPECT_TRUE(better.ok()) << better.status();
  return *better;
}

TEST(BetterSchedule, SlowLink_IsAvoidedByAnotherOrderOfRanks) {
  RunSpec run = RunUnder("custom,ranks=3,compute=s/2,order=1f1b", 12);
  run.replan.gain = 0.05;
  const BetterSchedule better = BetterWithLink(run, {0, 1, 100, 0}, 3);
  EXPECT_TRUE(better.slow_links);
  EXPECT_GT(better.gain(), 0.05);
  const BetterSchedule undisturbed = BetterAt(run, {1, 1, 1});
  EXPECT_NEAR(better.step, undisturbed.present, 0.1 * undisturbed.present) << "as if the link were not slow";
}

TEST(BetterSchedule, SlowLinkThatCostsLessThanTheGain_CountsAsNotKnown) {
  RunSpec run = RunUnder("custom,ranks=3,compute=s/2,order=1f1b", 12);
  run.replan.gain = 0.05;
  const BetterSchedule better = BetterWithLink(run, {0, 1, 0, 1e-6}, 3), without = BetterAt(run, {1, 1, 1});
  EXPECT_FALSE(better.slow_links);
  EXPECT_EQ(ToText(better.schedule), ToText(without.schedule));
  EXPECT_EQ(better.step, without.step);
}

// A pipeline sends less than the sums of gradients, and holds each stage once.
TEST(BetterSchedule, SlowLinkUnderDataParallelism_LeadsToAPipelineWithinTheMemory) {
  RunSpec run = RunUnder("ddp,ranks=2", 12);
  run.replan.gain = 0.05;
  const double bandwidth = 2000;  // bytes a second, where a block has 50 KB of weights
  const BetterSchedule better = BetterWithLink(run, {0, 1, bandwidth, 0}, 2);
  EXPECT_TRUE(better.slow_links);
  EXPECT_GT(better.gain(), 0.3);
  const BetterSchedule now = BetterAt(run, {1, 1});
  EXPECT_LE(*std::max_element(better.peak_bytes.begin(), better.peak_bytes.end()),
            1.1 * *std::max_element(now.peak_bytes.begin(), now.peak_bytes.end()));
}

// Returns true if some stage reads what another rank has computed.
bool SendsActivations(RunSpec run, const ScheduleSpec& schedule) {
  run.schedule = schedule;
  const Schedule scheme = ScheduleOf(run)->scheme;
  for (int s = 1; s < scheme.stages; ++s) {
    for (int b = 0; b < scheme.microbatches; ++b) {
      const auto rank_of = [&](int stage) {
        return scheme.compute(Job::Compute(0, stage, b, JobKind::kForward));
      };
      if (rank_of(s) != rank_of(s - 1)) return true;
    }
  }
  return false;
}

// Two links on which an activation takes equally long. Over that of the latency, larger tensors take no
// longer: a step of data parallelism then waits for it only with its sums.
TEST(BetterSchedule, LatencyOfASlowLink_IsNotTakenForItsBandwidth) {
  RunSpec run = RunUnder("custom,ranks=2,compute=s%2,order=1f1b", 12);
  run.replan.gain = 0.05;
  run.memory = 1'000'000'000;
  const double seconds = 5, bytes = 4 * 32 * 16;
  const BetterSchedule late = BetterWithLink(run, {0, 1, 0, seconds}, 2);
  const BetterSchedule narrow = BetterWithLink(run, {0, 1, bytes / seconds, 0}, 2);
  EXPECT_NE(ToText(late.schedule), ToText(narrow.schedule));
  EXPECT_TRUE(SendsActivations(run, narrow.schedule)) << ToText(narrow.schedule);
  EXPECT_FALSE(SendsActivations(run, late.schedule)) << ToText(late.schedule);
  EXPECT_GT(late.gain(), 0.05);
}

TEST(BetterSchedule, EqualRanks_KeepTheirSchedule) {
  for (const char* schedule : {"ddp,ranks=2", "lpp,groups=2,ranks=2"}) {
    const RunSpec run = RunUnder(schedule, 12);
    const auto ranks = ScheduleOf(run)->scheme.ranks;
    const BetterSchedule better = BetterAt(run, std::vector<double>(ranks, 1));
    EXPECT_LT(better.gain(), 0.05) << schedule << ": " << ToText(better.schedule);
  }
}

// A pipeline that splits its backwards gets an order for the slow rank, with no more activations than now.
TEST(BetterSchedule, SlowRankOfASplitPipeline_GetsAnOrder) {
  const RunSpec run = RunUnder("zb_h1", 8, Json::array({1, 1, 2, 2}));
  const BetterSchedule better = BetterAt(run, {1, 0.6, 0.9, 0.8});
  EXPECT_EQ(ToText(better.schedule), "file,path=planned_order");
  EXPECT_GT(better.gain(), 0.01);
  EXPECT_EQ(ForwardsOf(run, better.schedule), (std::vector<int>{8, 8, 8, 8}));
  RunSpec under = run;
  under.schedule = better.schedule;
  EXPECT_TRUE(ScheduleOf(under)->scheme.split_backward);
}

// Without known links nothing is chosen that sends more; a fast link allows data parallelism.
TEST(BetterSchedule, UnknownLinks_AllowOnlyWhatSendsHardlyMore) {
  const RunSpec run = RunUnder("custom,ranks=2,compute=s < 3 ? 0 : 1,order=1f1b", 12);
  const std::vector<int> unknown = ForwardsOf(run, BetterAt(run, {1, 0.5}).schedule);
  EXPECT_EQ(unknown[0] % 12, 0);  // whole stages
  const BetterSchedule known = BetterAt(run, {1, 0.5}, MeasuredLink{});
  EXPECT_NEAR(known.step, known.bound, 1e-6);
}

TEST(BetterSchedule, OldWeights_KeepTheirRule) {
  const RunSpec run = RunUnder("pipedream_2bw", 6, Json::array({3, 3}));
  RunSpec under = run;
  under.schedule = BetterAt(run, {1, 0.5}).schedule;
  const auto present = ScheduleOf(run), better = ScheduleOf(under);
  for (int b = 0; b < 6; ++b) EXPECT_EQ(better->scheme.StalenessOf(0, b), present->scheme.StalenessOf(0, b));
}

}  // namespace
}  // namespace weft::better_schedule_test
