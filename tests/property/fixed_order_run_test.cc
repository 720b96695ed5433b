// One pass over fixed orders gives the numbers of the simulation from event to event, which records jobs.
#include "schedules/simulator/fixed_order_run.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/property/random_case.h"
#include "tests/unit/without_terms.h"

namespace weft::fixed_order_run_test {
namespace {

void ExpectSame(const RankStats& a, const RankStats& b) {
  EXPECT_EQ(a.busy, b.busy);
  EXPECT_EQ(a.idle, b.idle);
  EXPECT_EQ(a.idle_by_cause, b.idle_by_cause);
  EXPECT_EQ(a.peak_activations, b.peak_activations);
  EXPECT_EQ(a.peak_activation_bytes, b.peak_activation_bytes);
  EXPECT_EQ(a.held_bytes, b.held_bytes);
  EXPECT_EQ(a.peak_weight_versions, b.peak_weight_versions);
  EXPECT_EQ(a.activation_receives, b.activation_receives);
  EXPECT_EQ(a.gradient_receives, b.gradient_receives);
  EXPECT_EQ(a.weight_fetches, b.weight_fetches);
  EXPECT_EQ(a.bytes_received, b.bytes_received);
  EXPECT_EQ(a.bytes_sent, b.bytes_sent);
  EXPECT_EQ(a.sent_by_kind, b.sent_by_kind);
}

void ExpectSame(const SimulationResult& a, const SimulationResult& b) {
  EXPECT_EQ(a.makespan, b.makespan);
  EXPECT_EQ(a.period, b.period);
  EXPECT_EQ(a.bubble_ratio, b.bubble_ratio);
  EXPECT_EQ(a.throughput_per_rank, b.throughput_per_rank);
  EXPECT_EQ(a.throughput_bound, b.throughput_bound);
  EXPECT_EQ(a.peak_live_activations, b.peak_live_activations);
  EXPECT_EQ(a.peak_live_bytes, b.peak_live_bytes);
  EXPECT_EQ(a.step_end, b.step_end);
  for (size_t rank = 0; rank < a.ranks.size(); ++rank) ExpectSame(a.ranks[rank], b.ranks[rank]);
}

TEST(FixedOrderRun, RandomOrders_GiveTheNumbersOfTheGeneralSimulation) {
  constexpr uint64_t kSeeds = 600;
  int fit = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    RandomCase c = DrawCase(seed);
    if (c.schedule.scheme.order.empty()) continue;
    SCOPED_TRACE(c.text);
    c.options.latency = c.options.bandwidth = 0;
    c.options.steps += seed % 2 == 0 ? 3 : 0;
    for (std::vector<double>& of_kind : c.options.duration) {
      for (double& time : of_kind) time *= seed % 3 == 0 ? 1.1 : 1;  // sums are rounded
    }
    const Graph graph(c.schedule);
    SimulationOptions recorded = c.options;
    recorded.record_jobs = true;
    c.options.record_jobs = false;
    fit += FixedOrderRun::MayFit(graph, c.options) && FixedOrderRun(graph, c.options, {}).fits();
    const auto fast = Simulate(graph, c.options), general = Simulate(graph, recorded);
    ASSERT_TRUE(fast.ok() && general.ok());
    ExpectSame(*fast, *general);
  }
  EXPECT_GT(fit, 20) << "the pass has been tried";
}

TEST(FixedOrderRun, WhatOrdersDoNotDecideAlone_DoesNotFit) {
  const Graph ordered(WithoutTerms(*MakeSchedule("zb_h1", {}, 4, 8))),
      greedy(WithoutTerms(*MakeSchedule("1f1b", {}, 4, 8)));
  SimulationOptions options;
  EXPECT_TRUE(FixedOrderRun::MayFit(ordered, options));
  EXPECT_FALSE(FixedOrderRun::MayFit(greedy, options));
  options.latency = 1;
  EXPECT_FALSE(FixedOrderRun::MayFit(ordered, options));
  options.latency = 0;
  options.record_waits = true;
  EXPECT_FALSE(FixedOrderRun::MayFit(ordered, options));
  options.record_waits = false;
  options.activation = {0.5};
  EXPECT_FALSE(FixedOrderRun(ordered, options, {}).fits()) << "sums depend on the order of adding";
  options.activation = {1};
  options.duration[static_cast<int>(JobKind::kForward)] = {0};
  EXPECT_FALSE(FixedOrderRun(ordered, options, {}).fits());
}

}  // namespace
}  // namespace weft::fixed_order_run_test
