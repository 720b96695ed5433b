// Many runs on thousands of workers, some of which are lost all the time. WEFT_SEED=n takes another seed,
// WEFT_WORKERS=n another number of workers.
#include "tests/simulation/fleet.h"

#include <iostream>

#include "gtest/gtest.h"
#include "tests/simulation/from_environment.h"

namespace weft::fleet_test {
namespace {

FleetResult Play(FleetOptions options) {
  options.seed = FromEnvironment("WEFT_SEED", 1);
  const FleetResult r = RunFleet(options);
  std::cout << options.workers << " workers, " << options.runs << " runs: " << r.virtual_ns / 1'000'000'000
            << " virtual seconds, " << r.events << " events, " << r.messages << " messages, " << r.lost
            << " workers lost, " << r.lost_in_runs << " of them in runs, " << r.restarts << " restarts, "
            << r.from_checkpoints << " from checkpoints; the core took " << r.core_seconds
            << " s, the longest step " << 1e3 * r.most_step_seconds << " ms\n";
  return r;
}

TEST(Fleet, OneInAHundredWorkersIsLostAMinute_EveryRunEnds) {
  FleetOptions options;
  options.workers = static_cast<int>(FromEnvironment("WEFT_WORKERS", 2'000));
  options.runs = options.workers * 3 / 20;
  options.ranks = 8;
  const FleetResult result = Play(options);
  EXPECT_EQ(result.problem, "");
  EXPECT_GT(result.lost_in_runs, options.workers / 100);
  EXPECT_GE(result.restarts, result.lost_in_runs / 2);
  EXPECT_GT(result.from_checkpoints, options.workers / 500);
}

TEST(Fleet, ATenthOfTheWorkersIsLostAMinute_EveryRunEnds) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FleetOptions options;
    options.seed = seed;
    options.lost_a_minute = 0.1;
    options.poison_losses = 100;  // so many may have the same job in hand by chance
    EXPECT_EQ(RunFleet(options).problem, "") << "seed " << seed;
  }
}

TEST(Fleet, EqualSeeds_PlayTheSame) {
  FleetOptions options;
  options.runs = 5;
  const FleetResult first = RunFleet(options), second = RunFleet(options);
  EXPECT_EQ(first.events, second.events);
  EXPECT_EQ(first.virtual_ns, second.virtual_ns);
}

}  // namespace
}  // namespace weft::fleet_test
