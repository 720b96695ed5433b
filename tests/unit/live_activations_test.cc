// Activations alive over all ranks against time, and their picture.
#include "schedules/drawing/live_activations.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/drawing/drawing_memory.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::live_activations_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

DrawnJob At(int stage, int microbatch, JobKind kind, Rank rank, double start, double end) {
  return {Job::Compute(0, stage, microbatch, kind), rank, start, end};
}

std::vector<DrawnJob> Simulated(const std::string& name, const std::string& rule, int n, int steps) {
  auto schedule = MakeSchedule(name, {}, n, n);
  EXPECT_TRUE(ApplyRule(rule, name, &*schedule).ok());
  SimulationOptions options;
  options.steps = steps;
  options.record_jobs = true;
  std::vector<DrawnJob> jobs;
  const auto result = Simulate(Graph(WithoutTerms(*schedule)), options);
  for (const SimulatedJob& j : result->jobs) jobs.push_back({j.job, j.rank, j.start, j.end});
  return jobs;
}

TEST(LiveActivations, OnePass_IsAliveFromItsForwardToTheEndOfItsBackward) {
  const std::vector<DrawnJob> jobs = {At(1, 0, JobKind::kForward, 0, 2, 3),
                                      At(1, 0, JobKind::kBackward, 0, 5, 6)};
  const LiveActivations live = CountLiveActivations(jobs, {10, 20});
  ASSERT_EQ(live.points.size(), 2);
  EXPECT_EQ(live.points[0].time, 2);
  EXPECT_EQ(live.points[0].activations, 1);
  EXPECT_EQ(live.points[0].bytes, 20);
  EXPECT_EQ(live.points[1].time, 6);
  EXPECT_EQ(live.points[1].activations, 0);
  EXPECT_EQ(live.points[1].bytes, 0);
  EXPECT_EQ(live.peak_activations, 1);
  EXPECT_EQ(live.peak_bytes, 20);
}

TEST(LiveActivations, SplitBackward_KeepsThemUntilTheHalfForTheWeights) {
  const std::vector<DrawnJob> jobs = {At(0, 0, JobKind::kForward, 0, 0, 1),
                                      At(0, 0, JobKind::kBackwardInput, 0, 1, 2),
                                      At(0, 0, JobKind::kBackwardWeight, 0, 7, 8)};
  EXPECT_EQ(CountLiveActivations(jobs, {1}).points.back().time, 8);
}

TEST(LiveActivations, HalvesOnTwoRanks_LeaveNothingBetween) {
  const std::vector<DrawnJob> jobs = {At(0, 0, JobKind::kForward, 0, 0, 1),
                                      At(0, 0, JobKind::kBackward, 1, 4, 6)};
  const LiveActivations live = CountLiveActivations(jobs, {4});
  ASSERT_EQ(live.points.size(), 4);
  EXPECT_EQ(live.points[1].activations, 0);
  EXPECT_EQ(live.mean_activations, 0.5);
  EXPECT_EQ(live.mean_bytes, 2);
}

TEST(LiveActivations, OneEndsAsAnotherBegins_CountsOne) {
  const std::vector<DrawnJob> jobs = {
      At(0, 0, JobKind::kForward, 0, 0, 1), At(0, 0, JobKind::kBackward, 0, 1, 2),
      At(0, 1, JobKind::kForward, 1, 2, 3), At(0, 1, JobKind::kBackward, 1, 3, 4)};
  EXPECT_EQ(CountLiveActivations(jobs, {1}).peak_activations, 1);
}

// A trace may begin in the middle of a micro-batch.
TEST(LiveActivations, HalfAPass_IsNotCounted) {
  EXPECT_TRUE(
      CountLiveActivations(std::vector<DrawnJob>{At(0, 0, JobKind::kForward, 0, 0, 1)}, {1}).points.empty());
  EXPECT_TRUE(
      CountLiveActivations(std::vector<DrawnJob>{At(0, 0, JobKind::kBackward, 0, 0, 1)}, {1}).points.empty());
  EXPECT_TRUE(CountLiveActivations({}, {1}).points.empty());
}

TEST(LiveActivations, CyclicOrder_HoldsAboutHalfOfDataParallel) {
  for (int n : {2, 3, 4, 8}) {
    EXPECT_EQ(CountLiveActivations(Simulated("ddp", "sync", n, 3), {1}).peak_activations, n * n) << n;
    for (const char* rule : {"cdp_v1", "cdp_v2"}) {
      EXPECT_EQ(CountLiveActivations(Simulated("ddp", rule, n, 3), {1}).peak_activations, n * (n + 1) / 2)
          << n;
    }
  }
}

TEST(LivePicture, TwoCurves_SayTheirPeaksAndTheDifference) {
  const std::vector<LiveCurve> curves = {
      {"ddp", CountLiveActivations(Simulated("ddp", "sync", 4, 2), {1 << 20})},
      {"a<b", CountLiveActivations(Simulated("ddp", "cdp_v2", 4, 2), {1 << 20})}};
  const std::string svg = DrawLiveActivations(curves, {"two", "beside each other"});
  EXPECT_THAT(svg, HasSubstr("ddp: peak 16.0 MiB"));
  EXPECT_THAT(svg, HasSubstr("a&lt;b: peak 10.0 MiB, 38 % below the first"));
  EXPECT_THAT(svg, Not(HasSubstr("a<b")));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(LivePicture, NoBytes_ShowsNumbers) {
  const std::vector<LiveCurve> curves = {{"ddp", CountLiveActivations(Simulated("ddp", "sync", 3, 1), {0})}};
  EXPECT_THAT(DrawLiveActivations(curves, {"one", ""}), HasSubstr("ddp: peak 9; mean"));
}

TEST(LivePicture, NothingAlive_IsStillAPicture) {
  const std::string svg = DrawLiveActivations(std::vector<LiveCurve>{{"none", {}}}, {"none", ""});
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

// Thousands of points in a pixel must not make a picture of thousands of lines.
TEST(LivePicture, ManyPoints_StaySmall) {
  const auto small = DrawLiveActivations(
      std::vector<LiveCurve>{{"x", CountLiveActivations(Simulated("ddp", "sync", 8, 200), {1})}}, {"x", ""});
  EXPECT_LT(small.size(), 120'000);
}

}  // namespace
}  // namespace weft::live_activations_test
