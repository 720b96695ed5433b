#include "run/run_peaks.h"

#include <algorithm>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "run/early_gradients.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "schedules/families/candidates.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/small_run_spec.h"
#include "tests/unit/without_terms.h"

namespace weft::run_peaks_test {
namespace {

RunSpec RunUnder(const Json& schedule) {
  const auto run = ParseRunSpec(With("/schedule", schedule));
  EXPECT_TRUE(run.ok()) << run.status();
  return *run;
}

std::vector<PeakBytes> SimulatedPeaks(const RunSpec& run) {
  const RunSchedule schedule = *ScheduleOf(run);
  SimulationOptions options;
  options.steps = run.train.steps;
  options.record_jobs = true;
  options.duration[static_cast<int>(JobKind::kBackward)] = {2};
  return CountPeaks(run, schedule, Simulate(Graph(schedule), options)->jobs);
}

// Rank s of four has 4 - s activations at once, one version, and one sum. Whether another process reads an
// output in place or copies it decides how long that stays.
TEST(CountPeaks, OneForwardOneBackward_IsExactButForBuffersAndOutputs) {
  const RunSpec run = RunUnder({{"1f1b", nullptr}});
  const std::vector<PeakBytes> peaks = SimulatedPeaks(run);
  ASSERT_EQ(peaks.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    const StageMemory stage = CountStage(run, rank);
    const auto& [least, most] = peaks[rank];
    for (const ClassBytes& bytes : {least, most}) {
      EXPECT_EQ(bytes.weights, stage.parameters);
      EXPECT_EQ(bytes.gradients, stage.parameters);
      EXPECT_EQ(bytes.optimizer, 2 * stage.parameters);
    }
    EXPECT_EQ(least.activations, (4 - rank) * (stage.activation_bytes - stage.output) + stage.output);
    EXPECT_EQ(most.activations, (4 - rank) * stage.activation_bytes);
    EXPECT_GT(most.buffers, 0);
  }
}

// Ranks 1 and 2 deal the micro-batches of the second stage; rank 0 alone sums the gradients of the first.
TEST(CountPeaks, GradientsOutOfOrderUnderTheGreedyRule_AreInTheBudgetsCount) {
  Json text = With("/schedule", {{"custom", {{"ranks", "3"}, {"compute", "s == 0 ? 0 : 1 + b % 2"}}}});
  text["stages"] = 2;
  text["train"]["microbatches"] = 8;
  const RunSpec run = *ParseRunSpec(text);
  const RunSchedule schedule = *ScheduleOf(run);
  SimulationOptions options;
  options.record_jobs = true;
  options.network.speeds = {4, 0.25, 1};
  const auto simulated = Simulate(Graph(schedule), options);
  const ClassBytes most = CountPeaks(run, schedule, simulated->jobs)[0].most;
  const int64_t gradient = CountStage(run, 0).parameters;
  EXPECT_GT(most.gradients, 2 * gradient) << "the slow rank's come late";
  EXPECT_EQ(CountRun(run, schedule).ranks[0].gradients, 8 * gradient) << "all of the others may wait";
  EXPECT_LE(most.gradients, CountRun(run, schedule).ranks[0].gradients);
}

// The gradients of a rank's eight micro-batches may wait; within a budget they have the room of forwards.
TEST(CountPeaks, GradientsThatLeaveTheirRank_AreAtMostWhatTheBudgetHasRoomFor) {
  Json text = With("/schedule", {{"ddp", {{"ranks", "2"}}}});
  text["train"]["microbatches"] = 16;
  RunSpec run = *ParseRunSpec(text);
  const RankMemory counted = CountRun(run, *ScheduleOf(run)).ranks[0];
  const int64_t handed_out = counted.handed_out, sums = counted.gradients - handed_out;
  EXPECT_GT(SimulatedPeaks(run)[0].most.gradients, handed_out);
  run.memory = counted.beside_forwards() + handed_out / 2;
  ASSERT_TRUE(ScheduleOf(run).ok()) << ScheduleOf(run).status();
  EXPECT_EQ(SimulatedPeaks(run)[0].most.gradients, sums + run.memory - counted.beside_forwards());
}

// A priority of its own may turn the order round.
TEST(CountEarlyGradients, YoungerMicrobatchesFirst_AllButOneWait) {
  const auto early_of = [](const Json& custom) {
    Json text = With("/schedule", {{"custom", custom}});
    text["stages"] = 2;
    const auto run = ParseRunSpec(text);
    EXPECT_TRUE(run.ok()) << run.status();
    return CountEarlyGradients(Graph(*ScheduleOf(*run)));
  };
  EXPECT_EQ(early_of({{"ranks", "2"}, {"compute", "s"}}), (std::vector<int>{0, 0}));
  EXPECT_EQ(early_of({{"ranks", "2"}, {"compute", "s"}, {"priority", "(k != forward)*B + b"}}),
            (std::vector<int>{0, 0}));
  EXPECT_EQ(
      early_of(
          {{"ranks", "2"}, {"compute", "s"}, {"priority", "(k != forward)*B + (s == 0 ? b : B - 1 - b)"}}),
      (std::vector<int>{3, 3}));
  EXPECT_EQ(early_of({{"ranks", "2"}, {"compute", "s"}, {"split_backward", "true"}}),
            (std::vector<int>{0, 0}));
}

TEST(CountEarlyGradients, ByOrderAndStaleness_AreAsManyAsMayWait) {
  const Json periodic = {{"placement", "0+1+2+3"},
                         {"window", "12"},
                         {"forward", "0+3+5+7+6+11+13+15"},
                         {"backward", "15+13+11+9+33+21+19+17"}};
  const Json younger = {{"ranks", "4"}, {"compute", "s"}, {"priority", "(k != forward)*B + B - 1 - b"}};
  Json stale = younger;
  stale["staleness"] = "1";
  const struct {
    const char* name;
    Json schedule;
    std::vector<int> early;
  } cases[] = {
      {"older first", {{"1f1b", nullptr}}, {0, 0, 0, 0}},
      {"younger first", {{"custom", younger}}, {3, 3, 3, 3}},
      {"in two steps", {{"custom", stale}}, {6, 6, 6, 6}},
      {"fixed order", {{"periodic", periodic}}, {1, 0, 0, 0}},
      {"cyclic", {{"fsdp", nullptr}, {"rule", "cdp_v2"}}, {0, 0, 0, 0}},
  };
  for (const auto& c : cases) {
    const auto schedule = ScheduleOf(RunUnder(c.schedule));
    ASSERT_TRUE(schedule.ok()) << c.name << ": " << schedule.status();
    EXPECT_EQ(CountEarlyGradients(Graph(*schedule)), c.early) << c.name;
  }
}

// Backwards on old weights may be of several steps at a time; in the order of steps each sum is taken before
// the next begins.
TEST(FindSingleSums, StepsInOrderOnTheRankThatSums_HaveOneSumAtATime) {
  const auto single_of = [](const Json& schedule, const char* more, const Json& value) {
    Json text = With("/schedule", schedule);
    text["train"][more] = value;
    const auto run = ParseRunSpec(text);
    EXPECT_TRUE(run.ok()) << run.status();
    const std::vector<bool> single = FindSingleSums(Graph(*ScheduleOf(*run)));
    const auto count = std::count(single.begin(), single.end(), true);
    EXPECT_TRUE(count == 0 || count == 4);
    return count == 4;
  };
  const Json stale = {{"ranks", "4"}, {"compute", "s"}, {"staleness", "1"}};
  Json younger = stale, newer = stale;
  younger["priority"] = "(k != forward)*B + B - 1 - b";
  newer["staleness"] = "b == 0 ? 2 : 0";  // the first of a step is ready before the last of the step before
  EXPECT_TRUE(single_of({{"pipedream", nullptr}}, "microbatches", 1));
  EXPECT_TRUE(single_of({{"custom", stale}}, "microbatches", 4));
  EXPECT_FALSE(single_of({{"custom", younger}}, "microbatches", 4));
  EXPECT_FALSE(single_of({{"custom", newer}}, "microbatches", 4));
  EXPECT_FALSE(single_of({{"custom", stale}}, "clip_norm", 1.0)) << "updates wait for the norm";
  EXPECT_FALSE(single_of({{"ddp", nullptr}}, "microbatches", 4)) << "several ranks sum";
}

Schedule CustomOf(int stages, const std::map<std::string, std::string>& parameters) {
  auto schedule = MakeSchedule("custom", parameters, stages, 4);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

// Stages 1 and 2 read 0, and 3 reads both. Stage 2 prefers the younger, so 0 is not in order. Stage 1, which
// waits for 0 and has 0 wait for it, is not either.
TEST(CountEarlyGradients, StageThatWaitsForOneOutOfOrder_IsOutOfOrder) {
  Schedule schedule =
      CustomOf(4, {{"ranks", "4"},
                   {"compute", "s"},
                   {"priority", "(k != forward)*B + (k != forward && s == 2 ? B - 1 - b : b)"}});
  schedule.precedes = [](const Job& job) {
    if (job.kind != JobKind::kBackward || job.stage != 1 || job.microbatch == 0) return std::vector<Job>();
    return std::vector<Job>{Job::Compute(job.step, 0, job.microbatch - 1, JobKind::kBackward)};
  };
  RunTerms terms;
  terms.inputs = {{}, {0}, {0}, {1, 2}};
  EXPECT_EQ(CountEarlyGradients(Graph({std::move(schedule), terms})), (std::vector<int>{3, 3, 3, 0}));
}

TEST(CountEarlyGradients, OddStepsOutOfOrder_AreFound) {
  Schedule schedule = CustomOf(2, {{"ranks", "2"}, {"compute", "s"}, {"period", "2"}});
  schedule.precedes = [](const Job& job) {
    if (job.kind != JobKind::kBackward || job.stage != 1) return std::vector<Job>();
    const int b = job.step % 2 == 0 ? job.microbatch : 3 - job.microbatch;
    return std::vector<Job>{Job::Compute(job.step, 1, b, JobKind::kForward)};
  };
  EXPECT_EQ(CountEarlyGradients(Graph(WithoutTerms(std::move(schedule)))), (std::vector<int>{3, 3}));
}

// The gradients of families come in order, so none needs room to wait.
TEST(CountEarlyGradients, FamiliesUnderTheGreedyRule_MakeNone) {
  int greedy = 0;
  for (const Candidate& candidate : Candidates(4, 8)) {
    const auto schedule = MakeSchedule(candidate.name, candidate.parameters, 4, 8);
    if (!schedule.ok()) continue;
    const Graph graph(WithoutTerms(*schedule));
    if (graph.replays()) continue;
    ++greedy;
    EXPECT_EQ(CountEarlyGradients(graph), std::vector<int>(graph.schedule().stages, 0)) << candidate.name;
  }
  EXPECT_GT(greedy, 5);
}

// Each stage but the last reads weights that are old, and keeps so many versions.
TEST(CountPeaks, OldWeights_KeepTheirVersions) {
  Json text = With("/schedule", {{"pipedream", nullptr}});
  text["train"]["microbatches"] = 1;
  text["train"]["steps"] = 8;
  const RunSpec run = *ParseRunSpec(text);
  const std::vector<PeakBytes> peaks = SimulatedPeaks(run);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(peaks[rank].least.weights, (4 - rank) * CountStage(run, rank).parameters) << rank;
    EXPECT_EQ(peaks[rank].most.weights, peaks[rank].least.weights);
  }
}

// A gradient that comes before its turn waits beside the sum.
TEST(CountPeaks, BackwardsOutOfOrder_WaitBesideTheSum) {
  RunSpec run = RunUnder(
      {{"custom", {{"ranks", 1}, {"compute", "0"}, {"priority", "(k == forward)*B*S + (B-1-b)*S + s"}}}});
  const std::vector<PeakBytes> peaks = SimulatedPeaks(run);
  int64_t sums = 0, waiting = 0;
  for (int stage = 0; stage < run.stages(); ++stage) sums += CountStage(run, stage).parameters;
  waiting = peaks[0].most.gradients - sums;
  EXPECT_GT(waiting, 0);
  EXPECT_EQ(peaks[0].least.gradients, peaks[0].most.gradients);
}

// The published pattern of four layers in windows of two. On rank 0 the backward of a window's second
// micro-batch comes after that of the next window's first.
TEST(CountRun, GradientsBeforeTheirTurnInAFixedOrder_AreCounted) {
  Json text = With("/schedule", {{"periodic",
                                  {{"placement", "0+1+2+3"},
                                   {"window", "12"},
                                   {"forward", "0+3+5+7+6+11+13+15"},
                                   {"backward", "15+13+11+9+33+21+19+17"}}}});
  const RunSpec run = *ParseRunSpec(text);
  const RunMemory counted = CountRun(run, *ScheduleOf(run));
  EXPECT_EQ(counted.ranks[0].gradients, 2 * CountStage(run, 0).parameters) << "one waits beside the sum";
  EXPECT_EQ(counted.ranks[1].gradients, CountStage(run, 1).parameters);
  const std::vector<PeakBytes> peaks = SimulatedPeaks(run);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(peaks[rank].most.gradients, counted.ranks[rank].gradients);
}

// Rank s of four keeps a copy of the input of each of its 4 - s micro-batches.
TEST(CountPeaks, RanksWithoutSharedMemory_KeepCopiesOfTheirInputs) {
  Json text = With("/schedule", {{"1f1b", nullptr}});
  text["separate_memory"] = true;
  const RunSpec run = *ParseRunSpec(text);
  const RunSchedule schedule = *ScheduleOf(run);
  SimulationOptions options;
  options.record_jobs = true;
  options.duration[static_cast<int>(JobKind::kBackward)] = {2};
  const std::vector<SimulatedJob> jobs = Simulate(Graph(schedule), options)->jobs;
  const std::vector<PeakBytes> apart = CountPeaks(run, schedule, jobs, MemoryOfRank{0, 1, 2, 3});
  const std::vector<PeakBytes> unknown = CountPeaks(run, schedule, jobs);
  const RunMemory counted = CountRun(run, schedule);
  EXPECT_EQ(apart[0].least.received, CountStage(run, 0).output) << "the gradient of its output alone";
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    const int64_t input = rank == 0 ? 0 : CountStage(run, rank - 1).output;
    const int64_t output = rank == 3 ? 0 : CountStage(run, rank).output;
    EXPECT_GE(apart[rank].least.received, (4 - rank) * input);
    EXPECT_GE(apart[rank].most.received, apart[rank].least.received);
    EXPECT_EQ(unknown[rank].least.received, 0);
    EXPECT_EQ(unknown[rank].most.received, apart[rank].most.received);
    EXPECT_EQ(counted.forwards.received_bytes[rank], input + output);
    EXPECT_EQ(counted.ranks[rank].received, 0) << "weights and gradients stay on their rank";
  }
}

// A run that goes on from a checkpoint has no jobs of the steps before it, and nothing comes from them.
TEST(CountPeaks, ResumedRun_GetsNoCopiesFromStepsThatItDoesNotMake) {
  Json text = With("/schedule", {{"fsdp", {{"residency", "migrating"}}}, {"rule", "cdp_v2"}});
  text["separate_memory"] = true;
  text["train"]["microbatches"] = 4;
  RunSpec run = *ParseRunSpec(text);
  const RunSchedule schedule = *ScheduleOf(run);
  SimulationOptions options;
  options.record_jobs = true;
  options.steps = 2;
  std::vector<SimulatedJob> jobs = Simulate(Graph(schedule), options)->jobs;
  const auto most = [&] {
    std::vector<int64_t> bytes;
    for (const PeakBytes& rank : CountPeaks(run, schedule, jobs)) bytes.push_back(rank.most.received);
    return bytes;
  };
  for (SimulatedJob& j : jobs) j.job.step += 4;
  const std::vector<int64_t> amid = most();  // of a run that made the steps before, too
  run.resume.step = 4;
  const std::vector<int64_t> resumed = most();
  for (int rank = 0; rank < 4; ++rank) EXPECT_LE(resumed[rank], amid[rank]) << rank;
  EXPECT_NE(resumed, amid) << "states that the steps before would have handed on";
}

// Each rank holds a slice of every stage; the slices of a stage are the whole.
TEST(CountPeaks, WeightsByWidth_AreCountedSliceBySlice) {
  Json text = With("/schedule", {{"fsdp", {{"shard", "width"}}}});
  text["train"]["microbatches"] = 4;
  const RunSpec run = *ParseRunSpec(text);
  const std::vector<PeakBytes> peaks = SimulatedPeaks(run);
  int64_t whole = 0, of_ranks = 0;
  for (int stage = 0; stage < run.stages(); ++stage) whole += CountStage(run, stage).parameters;
  for (const PeakBytes& rank : peaks) {
    EXPECT_EQ(rank.least.optimizer, rank.most.optimizer);
    EXPECT_EQ(2 * rank.least.weights, rank.least.optimizer) << "two moments of what is held";
    EXPECT_EQ(rank.most.weights, 2 * rank.least.weights) << "an update may write beside what others read";
    of_ranks += rank.least.weights;
  }
  EXPECT_EQ(of_ranks, whole);
}

}  // namespace
}  // namespace weft::run_peaks_test
