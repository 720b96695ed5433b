#include "client/files/measured_profile.h"

#include <cstddef>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_memory.h"
#include "tests/unit/small_run_spec.h"

namespace weft::measured_profile_test {
namespace {

// A run with each of its layers as a stage.
RunSpec LayersOfSmallRun() {
  Json run = With("/train/microbatches", 1);
  run["train"]["batch"] = 4;
  run["stages"] = Json::array({1, 1, 1, 1, 1, 1});
  run["schedule"] = "lpp,groups=1,ranks=1";
  auto spec = ParseRunSpec(run);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

// Forwards of 1 s and backwards of 2, and the time of copies at `bandwidth` in each; 0 for none. All steps
// but one take longer.
Trace TraceOf(const RunSpec& run, double bandwidth) {
  RunSpec offloading = run;
  offloading.schedule.activations = "offload";
  const std::vector<StageMemory> layers = CountStages(offloading);
  Trace trace;
  for (int step = 0; step < 4; ++step) {
    for (size_t l = 0; l < layers.size(); ++l) {
      for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
        DrawnJob job;
        job.job = Job::Compute(step, static_cast<int>(l), 0, kind);
        job.end = kind == JobKind::kForward ? 1 : 2;
        if (bandwidth > 0) job.end += static_cast<double>(layers[l].offloaded) / bandwidth;
        if (step != 2) job.end += 10 * (4 - step) * (bandwidth > 0 ? 1 : 2);
        trace.jobs.push_back(job);
      }
    }
  }
  return trace;
}

TEST(HostBandwidthOf_OffloadedLayers, WhatJobsTakeLonger_IsTheTimeOfTheirCopies) {
  const RunSpec run = LayersOfSmallRun();
  EXPECT_NEAR(HostBandwidthOf(run, TraceOf(run, 0), TraceOf(run, 1e6)), 1e6, 1);
  EXPECT_NEAR(HostBandwidthOf(run, TraceOf(run, 0), TraceOf(run, 5e3)), 5e3, 1);
  EXPECT_EQ(HostBandwidthOf(run, TraceOf(run, 1e6), TraceOf(run, 0)), 0) << "it does not show";
  EXPECT_EQ(HostBandwidthOf(run, TraceOf(run, 0), TraceOf(run, 0)), 0);
}

TEST(MicrobatchesTogether, AreFourUnlessBatchOrTraceWouldBeTooLarge) {
  RunSpec run = LayersOfSmallRun();
  EXPECT_EQ(MicrobatchesTogether(run, 2), 4);
  EXPECT_EQ(MicrobatchesTogether(run, 2000), 3) << "12,000 forwards and backwards of a micro-batch each";
  EXPECT_EQ(MicrobatchesTogether(run, 20000), 1);
  run.train.batch = 1 << 18;
  EXPECT_EQ(MicrobatchesTogether(run, 2), 2) << "a batch has at most a million samples";
}

constexpr double kGap = 0.125;  // behind each job of TogetherTrace on the first rank, but in the first step

// Two ranks with two micro-batches each, whose idle times are known from a step on, which compute at once:
// the second rank takes `second` times as long, and both take `longer` than alone. A rank's first micro-batch
// takes longer than its other one, and so does the first step. Each rank sums its slices of all four
// gradients; most of that it has done before the last one comes.
Trace TogetherTrace(const RunSpec& run, double longer, int idle_from = 0, double second = 2) {
  Trace trace;
  trace.ranks = 2;
  std::vector<double> now(2, 0);  // by rank
  for (int step = 0; step < 4; ++step) {
    for (Rank rank = 0; rank < 2; ++rank) {
      const auto add = [&](const Job& job, double seconds) {
        DrawnJob drawn;
        drawn.rank = rank;
        drawn.job = job;
        const double of_rank = rank == 0 ? 1 : second;
        const double slower = longer * of_rank * (step == 0 ? 3 : 1);
        drawn.start = now[rank];
        drawn.end = drawn.start + seconds * slower;
        // Gaps of the first step are longer, and not all idle time is dispatch. A gap counts for the job
        // behind it.
        const bool first = step == 0 && !(job.kind == JobKind::kUpdate && job.stage == run.stages() - 1);
        const double gap = first ? 1 : kGap * of_rank;
        now[rank] = drawn.end + gap + 1;
        if (step < idle_from) return trace.jobs.push_back(drawn);
        trace.idle.push_back({rank, drawn.end, drawn.end + gap, "dispatch"});
        trace.idle.push_back({rank, drawn.end + gap, drawn.end + gap + 1, "transfer"});
        if (job.kind == JobKind::kReduce) drawn.delay = 0.2 * slower;
        trace.jobs.push_back(drawn);
      };
      for (int s = 0; s < run.stages(); ++s) {
        for (const int m : {2 * rank, 2 * rank + 1}) {
          add(Job::Compute(step, s, m, JobKind::kForward), m % 2 == 0 ? 1.1 : 1);
          add(Job::Compute(step, s, m, JobKind::kBackward), m % 2 == 0 ? 2.3 : 2);
        }
        add(Job::Reduce(step, s, rank), 0.1 * (s + 1));
        add(Job::Update(step, s, rank), 0.6);
      }
    }
  }
  return trace;
}

TEST(SlowToTogether, RanksThatComputeAtOnce_GiveTheProfileTheirTimesAtSpeedOne) {
  const RunSpec run = LayersOfSmallRun();
  nlohmann::ordered_json profile = {{"layers", Json::array()}};
  for (int s = 0; s < run.stages(); ++s) {
    profile["layers"].push_back({{"forward", 1.0},
                                 {"backward", 2.0},
                                 {"backward_input", 1.2},
                                 {"backward_weight", 1.0},
                                 {"update", 0.5},
                                 {"weight_bytes", 100}});
  }
  RunSpec together = run;
  together.train.microbatches = 4;
  const std::vector<double> speeds = SlowToTogether(together, TogetherTrace(run, 1.5), &profile);
  ASSERT_EQ(speeds.size(), 2u);
  EXPECT_NEAR(speeds[0], 1, 1e-6);
  EXPECT_NEAR(speeds[1], 0.5, 1e-6);
  for (int s = 0; s < run.stages(); ++s) {
    const auto& layer = profile["layers"][s];
    EXPECT_NEAR(layer["forward"].get<double>(), 1.5, 1e-6);
    EXPECT_NEAR(layer["backward"].get<double>(), 3, 1e-6);
    EXPECT_NEAR(layer["backward_input"].get<double>(), 1.8, 1e-6);
    EXPECT_NEAR(layer["backward_weight"].get<double>(), 1.5, 1e-6);
    EXPECT_NEAR(layer["update"].get<double>(), 0.75, 1e-6);
    EXPECT_NEAR(layer["cold"].get<double>(), 1.5 * 0.4, 1e-6);
    EXPECT_NEAR(layer["accumulate"].get<double>(), 1.5 * (0.2 + 0.1 * (s + 1)) / 2, 1e-6)
        << "two for each rank";
    EXPECT_EQ(layer["weight_bytes"], 100);
  }
}

TEST(SlowToTogether, SpeedsThatDifferLittle_AreOneAndTimesThoseOfTheSlowest) {
  const RunSpec run = LayersOfSmallRun();
  nlohmann::ordered_json profile = {{"layers", Json::array()}};
  for (int s = 0; s < run.stages(); ++s)
    profile["layers"].push_back({{"forward", 1.0}, {"backward", 2.0}, {"update", 0.5}});
  RunSpec together = run;
  together.train.microbatches = 4;
  const std::vector<double> speeds =
      SlowToTogether(together, TogetherTrace(run, 1.5, /*idle_from=*/0, /*second=*/1.03), &profile);
  EXPECT_EQ(speeds, (std::vector<double>{1, 1}));
  EXPECT_NEAR(profile["layers"][0]["forward"].get<double>(), 1.5 * 1.03, 1e-6);
  EXPECT_NEAR(profile["layers"][0]["backward"].get<double>(), 3 * 1.03, 1e-6);
}

// The idle times of the first steps may be lost, and those of the first step do not count.
TEST(SlowToTogether, IdleTimeBeforeAJob_IsDispatch) {
  RunSpec run = LayersOfSmallRun();
  run.train.microbatches = 4;
  for (const int idle_from : {0, 2}) {
    nlohmann::ordered_json profile = {{"layers", Json::array()}};
    for (int s = 0; s < run.stages(); ++s) profile["layers"].push_back({{"forward", 1.0}, {"backward", 2.0}});
    SlowToTogether(run, TogetherTrace(run, 1.5, idle_from), &profile);
    EXPECT_NEAR(profile["dispatch"].get<double>(), kGap, 1e-9) << idle_from;
  }
}

// A summary with the figures of each layer's jobs of these kinds: those of layer 2 are larger.
Json SummaryOf(const RunSpec& run, const std::vector<JobKind>& kinds, int64_t base) {
  Json summary = {{"job_bytes", Json::array()}};
  for (const JobKind kind : kinds) {
    for (int s = 0; s < run.stages(); ++s) {
      const int64_t of_job = base * (1 + static_cast<int>(kind)) + (s == 2 ? 64 : 0);
      summary["job_bytes"].push_back({{"kind", JobKindName(kind)},
                                      {"stage", s},
                                      {"before", of_job + 1},
                                      {"buffers", of_job + 2},
                                      {"most", of_job + 3},
                                      {"left_buffers", of_job + 4},
                                      {"left", of_job + 5},
                                      {"passing", of_job + 6}});
    }
  }
  return summary;
}

TEST(AddBuffers, FiguresOfEachLayersJobs_AreThoseOfTheProfile) {
  const RunSpec run = LayersOfSmallRun();
  const int64_t k = 1 << 20;
  const Json whole = SummaryOf(run, {JobKind::kForward, JobKind::kBackward, JobKind::kUpdate}, k);
  const Json split =
      SummaryOf(run, {JobKind::kForward, JobKind::kBackwardInput, JobKind::kBackwardWeight}, 2 * k);
  nlohmann::ordered_json profile = {{"layers", Json::array()}};
  for (int s = 0; s < run.stages(); ++s) profile["layers"].push_back({{"forward", 1.0}});
  const nlohmann::ordered_json without = profile;
  AddBuffers(run, whole, Json(), &profile);
  AddBuffers(run, Json::object(), split, &profile);
  EXPECT_EQ(profile, without) << "one of the trainings was not made";

  AddBuffers(run, whole, split, &profile);
  const auto of = [&](JobKind kind) { return k * (1 + static_cast<int>(kind)); };
  const std::vector<StageMemory> counted = CountStages(run);
  for (int s = 0; s < run.stages(); ++s) {
    const auto& layer = profile["layers"][s];
    const int64_t more = s == 2 ? 64 : 0;
    const int64_t sent_back = s == 0 ? 0 : counted[s - 1].output;
    EXPECT_EQ(layer["forward_buffer_bytes"], of(JobKind::kForward) + more + 6);
    EXPECT_EQ(layer["backward_buffer_bytes"], of(JobKind::kBackward) + more + 2);
    EXPECT_EQ(layer["backward_beyond_bytes"], of(JobKind::kBackward) + more + 3);
    EXPECT_EQ(layer["update_buffer_bytes"], of(JobKind::kUpdate) + more + 2);
    EXPECT_EQ(layer["backward_input_buffer_bytes"], 2 * of(JobKind::kBackwardInput) + more + 2);
    EXPECT_EQ(layer["backward_weight_buffer_bytes"], 2 * of(JobKind::kBackwardWeight) + more + 2);
    EXPECT_EQ(layer["between_buffer_bytes"], 2 * of(JobKind::kBackwardInput) + more + 4 - sent_back);
    EXPECT_EQ(layer["between_beyond_bytes"], 2 * of(JobKind::kBackwardInput) + more + 5 - sent_back);
  }
  EXPECT_EQ(profile["standing_buffer_bytes"], 2 * of(JobKind::kForward) + 1) << "the larger of the trainings";
}

}  // namespace
}  // namespace weft::measured_profile_test
