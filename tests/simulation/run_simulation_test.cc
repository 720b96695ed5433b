// Whole runs under a virtual clock and a faulty network, many seeds. A failing seed is printed with its
// world: `simulate_worlds WORLD --seed N` plays it again. WEFT_SEED=n plays it alone here, WEFT_SEEDS=n that
// many.
#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "gtest/gtest.h"
#include "tests/simulation/from_environment.h"
#include "tests/simulation/named_worlds.h"
#include "tests/simulation/world.h"

namespace weft::run_simulation_test {
namespace {

std::string Text(const WorldOptions& o) { return Describe("a world of this test,", o); }

// Sums over the worlds of all seeds.
struct Befallen {
  uint64_t events = 0, lost = 0, doubled = 0, behind = 0, overlapped = 0;
  int64_t virtual_ns = 0;
  int snapshots = 0, dropped = 0, validations = 0, stopped = 0;
  int coordinator_kills = 0, restarts = 0, resumed = 0, from_copies = 0, moved = 0;
  bool all_seeds = true;  // false where WEFT_SEED names the only one, or one had a problem
};

// Plays the world of seeds 1 to `seeds`; none may have a problem.
Befallen PlayAll(const char* name, uint64_t seeds) {
  const NamedWorld& world = *FindWorld(name);
  const uint64_t only = FromEnvironment("WEFT_SEED", 0);
  const uint64_t first = only > 0 ? only : 1, last = only > 0 ? only : FromEnvironment("WEFT_SEEDS", seeds);
  Befallen all;
  all.all_seeds = only == 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const WorldResult result = Play(world, seed);
    EXPECT_EQ(result.problem, "") << Describe(world, seed);
    if (!result.problem.empty()) {
      all.all_seeds = false;
      return all;
    }
    all.events += result.events;
    all.lost += result.packets_lost;
    all.doubled += result.packets_doubled;
    all.behind += result.launched_behind;
    all.overlapped += result.launched_overlapped;
    all.virtual_ns += result.virtual_ns;
    all.snapshots += result.snapshots;
    all.dropped += result.snapshots_dropped;
    all.validations += result.validations;
    all.stopped += result.stopped && result.snapshots > 0;
    all.coordinator_kills += result.coordinator_kills;
    all.restarts += result.restarts;
    all.resumed += result.resumed;
    all.from_copies += result.from_copies;
    all.moved += result.moved;
  }
  std::cout << name << ": " << last - first + 1 << " seeds, " << all.events << " events, "
            << 1e-9 * static_cast<double>(all.virtual_ns) << " virtual seconds, " << all.lost
            << " packets lost, " << all.doubled << " doubled, " << all.restarts << " restarts, "
            << all.resumed << " attempts from a checkpoint or copies, " << all.from_copies << " from copies, "
            << all.moved << " moves, " << all.coordinator_kills << " coordinators killed\n";
  return all;
}

TEST(SimulatedWorld, MessagesLostDoubledDelayedAndReordered_EveryRunEndsWithThePlainLoopsWeights) {
  const Befallen all = PlayAll("messages", 300);
  // The faults must have happened, or the test shows nothing.
  if (!all.all_seeds) return;
  EXPECT_GT(all.lost, 100u);
  EXPECT_GT(all.doubled, 100u);
}

// Any message between two workers may be lost: a want, a tensor, its acknowledgement. It is sent again, and
// the run does not notice.
TEST(SimulatedWorld, MessagesBetweenWorkersLost_EveryRunGoesOnWithoutARestart) {
  const uint64_t only = FromEnvironment("WEFT_SEED", 0);
  const uint64_t first = only > 0 ? only : 1, last = only > 0 ? only : FromEnvironment("WEFT_SEEDS", 200);
  uint64_t lost = 0, packets_lost = 0;
  int64_t longest = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    WorldOptions options = DrawWorld(seed);
    options.transfer_loss = 0.01 * static_cast<double>(1 + seed % 5);
    options.launch_ahead = 1 + static_cast<int>(seed % 3);
    options.redundancy = seed % 2 == 0 && options.processes > 1;
    const WorldResult result = RunWorld(options);
    ASSERT_EQ(result.problem, "") << Text(options);
    ASSERT_EQ(result.restarts, 0) << Text(options);
    lost += result.transfers_lost;
    packets_lost += result.packets_lost;
    longest = std::max(longest, result.virtual_ns);
  }
  std::cout << last - first + 1 << " seeds, " << lost << " messages between workers lost, and "
            << packets_lost << " packets of sessions; the longest run took "
            << 1e-9 * static_cast<double>(longest) << " virtual seconds\n";
  if (only == 0) {
    EXPECT_GT(lost, 1000u);
  }
}

// Each job takes between a quarter and half an hour. No other wait has a deadline while one runs.
TEST(SimulatedWorld, JobsOfAQuarterOfAnHour_NeverFail) {
  constexpr int64_t kQuarterHour = 900'000'000'000;
  const uint64_t only = FromEnvironment("WEFT_SEED", 0);
  const uint64_t first = only > 0 ? only : 1, last = only > 0 ? only : FromEnvironment("WEFT_SEEDS", 12);
  for (uint64_t seed = first; seed <= last; ++seed) {
    WorldOptions options = DrawWorld(seed);
    options.least_job_ns = options.job_ns = kQuarterHour;
    options.report_ns = 5'000'000'000;
    options.transfer_loss = 0.01;
    const WorldResult result = RunWorld(options);
    ASSERT_EQ(result.problem, "") << Text(options);
    ASSERT_EQ(result.restarts, 0) << Text(options);
    EXPECT_GT(result.virtual_ns, 2 * kQuarterHour);
  }
}

// Devices are given two to four jobs of a rank ahead. The core must wait for everything that the device does
// not keep in order.
TEST(SimulatedWorld, JobsLaunchedAhead_EveryRunEndsWithThePlainLoopsWeights) {
  const Befallen all = PlayAll("launched_ahead", 300);
  if (!all.all_seeds) return;
  EXPECT_GT(all.behind, 1000u);
  EXPECT_GT(all.overlapped, 10u);
}

TEST(SimulatedWorld, StateThatMigratesOnDevices_IsWithOneRankAtATime) {
  for (const char* rule : {"cdp_v1", "cdp_v2"}) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      WorldOptions options = DrawWorld(seed);
      options.family = "fsdp";
      options.parameters = {{"residency", "migrating"}};
      options.rule = rule;
      options.remote_backward = options.clips = false;
      options.stages = options.microbatches = 1 + static_cast<int>(seed % 5);
      options.first_step = 0;
      options.steps = 1 + static_cast<int>(seed % 6);
      options.processes = 1 + static_cast<int>(seed % 7) % options.stages;
      options.launch_ahead = 2 + static_cast<int>(seed % 3);
      ASSERT_EQ(RunWorld(options).problem, "") << Text(options);
    }
  }
}

TEST(SimulatedWorld, WeightsInSlices_EndAsInThePlainLoop) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    WorldOptions options = DrawWorld(seed);
    options.family = "fsdp";
    options.parameters = {{"shard", "width"}};
    options.rule = "sync";
    options.processes = std::min(options.processes, options.microbatches);
    ASSERT_EQ(RunWorld(options).problem, "") << Text(options);
  }
}

// Some holders are ranks of the same process, whose weights are at hand; the turn of those that are not is
// not for jobs that read these.
TEST(SimulatedWorld, WeightsOfStagesFromHereAndElsewhere_AreWantedForTwoJobsAtATime) {
  PlayAll("fetched_weights", 400);
}

// Every schedule that reads old weights, often: by the cores' effects a rank holds as many versions as the
// schedule needs and no more, in any order of events.
TEST(SimulatedWorld, OldWeights_AreHeldAsLongAsSomeJobReadsThem) {
  struct Named {
    const char *family, *rule;
    int versions;
  };
  for (const Named& named : {Named{"ddp", "cdp_v1", 1}, Named{"ddp", "cdp_v2", 1}, Named{"fsdp", "cdp_v2", 2},
                             Named{"gpipe", "cdp_v1", 2}, Named{"1f1b", "cdp_v2", 2},
                             Named{"pipedream", "sync", 4}, Named{"pipedream_2bw", "sync", 2}}) {
    for (uint64_t seed = 1; seed <= 15; ++seed) {
      WorldOptions options = DrawWorld(seed);
      options.family = named.family;
      options.rule = named.rule;
      options.parameters.clear();
      options.remote_backward = options.budget = false;
      options.chain = true;
      options.stages = options.microbatches = 4;
      if (options.family == "pipedream") options.microbatches = 1;
      options.steps = 7;
      options.first_step = 0;
      options.processes = 1 + static_cast<int>(seed % 4);
      const WorldResult result = RunWorld(options);
      ASSERT_EQ(result.problem, "") << Text(options);
      // Stage 0, or the first micro-batch, reads the oldest.
      EXPECT_EQ(result.peak_versions.at(0), named.versions) << Text(options);
    }
  }
}

// The run goes on at any step, and stops at any: the cores begin with the versions that the schedule reads
// there and leave those that it would read next.
TEST(SimulatedWorld, GoesOnAtAStep_EndsAsTheUndisturbedRun) {
  struct Named {
    const char *family, *rule;
    int microbatches;
  };
  for (const Named& named :
       {Named{"ddp", "cdp_v1", 4}, Named{"ddp", "cdp_v2", 4}, Named{"fsdp", "cdp_v2", 4},
        Named{"fsdp", "sync", 5}, Named{"gpipe", "cdp_v1", 4}, Named{"1f1b", "cdp_v2", 4},
        Named{"1f1b", "sync", 6}, Named{"zb_h1", "sync", 4}, Named{"dualpipe_v", "sync", 8},
        Named{"pipedream", "sync", 1}, Named{"pipedream_2bw", "sync", 4}}) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      WorldOptions options = DrawWorld(seed);
      options.family = named.family;
      options.rule = named.rule;
      options.parameters.clear();
      options.remote_backward = false;
      options.chain = true;
      options.stages = 4;
      options.microbatches = named.microbatches;
      options.processes = 1 + static_cast<int>(seed % 2);
      // Fewer steps before than the oldest weights are old, as many, and more.
      options.first_step = 1 + static_cast<int>(seed % 6);
      options.steps = options.first_step + 1 + static_cast<int>(seed % 5);
      ASSERT_EQ(RunWorld(options).problem, "") << Text(options);
    }
  }
}

// One rank at a time has the state of a stage by the cores' effects, and it passes every job of the stage, in
// any order of events.
TEST(SimulatedWorld, StateThatMigrates_IsWithOneRankAtATime) {
  for (const char* rule : {"cdp_v1", "cdp_v2"}) {
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      WorldOptions options = DrawWorld(seed);
      options.family = "fsdp";
      options.parameters = {{"residency", "migrating"}};
      options.rule = rule;
      options.remote_backward = options.clips = false;
      options.stages = options.microbatches = 1 + static_cast<int>(seed % 5);
      options.first_step = static_cast<int>(seed % 3);
      options.steps = options.first_step + 1 + static_cast<int>(seed / 5 % 9);
      options.processes = 1 + static_cast<int>(seed % 7) % options.stages;
      options.chain = seed % 4 != 0;
      const WorldResult result = RunWorld(options);
      ASSERT_EQ(result.problem, "") << Text(options);
      // Only with one stage does the second rule read nothing old.
      const bool old = options.stages > 1 || options.rule == "cdp_v1";
      int most = 0;
      for (const auto& [rank, versions] : result.peak_versions) most = std::max(most, versions);
      EXPECT_EQ(most, old ? 2 : 1) << Text(options);
    }
  }
}

TEST(SimulatedWorld, OverlappedPairs_RunAtOnceAndEndWithThePlainLoopsWeights) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    WorldOptions options = DrawWorld(seed);
    options.family = seed % 2 == 0 ? "dualpipe" : "dualpipe_v";
    options.parameters.clear();
    options.rule = "sync";
    options.remote_backward = options.budget = false;
    options.stages = 4;
    options.microbatches = 8;
    options.processes = 1 + static_cast<int>(seed % 2);
    const WorldResult result = RunWorld(options);
    ASSERT_EQ(result.problem, "") << Text(options);
    // Each rank and step has one at the least.
    EXPECT_GE(result.pairs, static_cast<uint64_t>(options.steps - options.first_step)) << Text(options);
  }
}

// A snapshot behind any step, of every protocol, while other steps run on, is what the plain loop has there.
// Disks may be slow, and some are full.
TEST(SimulatedWorld, Snapshots_AreOfOneStepAndWhole) {
  const Befallen all = PlayAll("snapshots", 300);
  if (!all.all_seeds) return;
  EXPECT_GT(all.snapshots, 1000);
  EXPECT_GT(all.dropped, 10);
}

// Validates with and without checkpoints: every multiple and the end, one at a time, however slow or full.
TEST(SimulatedWorld, Validations_AreOfEveryMultiple) {
  const Befallen all = PlayAll("validated", 200);
  if (!all.all_seeds) return;
  EXPECT_GT(all.validations, 200);
}

// Micro-batches of a stage read weights of different ages, and who saves them may not read all of them.
TEST(SimulatedWorld, SnapshotsOfOldWeights_HaveEveryVersionThatLaterStepsRead) {
  struct Named {
    const char *family, *rule;
    std::map<std::string, std::string> parameters = {};
  };
  const std::map<std::string, std::string> mixed = {
      {"workers", "4"}, {"compute", "b"}, {"weights", "b"}, {"staleness", "b"}};
  for (const Named& named :
       {Named{"ddp", "cdp_v2"}, Named{"ddp", "cdp_v1"}, Named{"fsdp", "cdp_v2"}, Named{"1f1b", "cdp_v2"},
        Named{"cdp_mp", "cdp_v1"}, Named{"cdp_mp", "cdp_v2"}, Named{"pipedream", "sync"},
        Named{"pipedream_2bw", "sync"}, Named{"custom", "sync", mixed}}) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      WorldOptions options = DrawWorld(seed);
      options.family = named.family;
      options.rule = named.rule;
      options.parameters = named.parameters;
      options.remote_backward = options.budget = options.clips = false;
      options.chain = true;
      options.stages = options.microbatches = 4;
      if (options.family == "pipedream") options.microbatches = 1;
      options.first_step = seed % 3 == 0 ? 3 : 0;
      options.steps = options.first_step + 9;
      options.processes = 1 + static_cast<int>(seed % 4);
      options.snapshot_every = 1 + static_cast<int>(seed % 4);
      ASSERT_EQ(RunWorld(options).problem, "") << Text(options) << " every " << options.snapshot_every;
    }
  }
}

TEST(SimulatedWorld, SnapshotsOfAStateThatMigrates_AreTakenWhereItsVersionIsMade) {
  for (const char* rule : {"cdp_v1", "cdp_v2"}) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      WorldOptions options = DrawWorld(seed);
      options.family = "fsdp";
      options.parameters = {{"residency", "migrating"}};
      options.rule = rule;
      options.remote_backward = options.clips = options.budget = false;
      options.stages = options.microbatches = 1 + static_cast<int>(seed % 5);
      options.first_step = static_cast<int>(seed % 3);
      options.steps = options.first_step + 6;
      options.processes = 1 + static_cast<int>(seed % 7) % options.stages;
      options.snapshot_every = 1 + static_cast<int>(seed % 2);
      ASSERT_EQ(RunWorld(options).problem, "") << Text(options);
    }
  }
}

// Told to stop at any moment, a run ends with the whole checkpoint of a step, and every step before is told.
TEST(SimulatedWorld, ToldToStop_EndsWithACheckpoint) {
  const Befallen all = PlayAll("told_to_stop", 120);
  if (!all.all_seeds) return;
  EXPECT_GT(all.stopped, 20);
}

// Processes are killed before the run is told to stop, or while it saves. It begins again, and saves all.
TEST(SimulatedWorld, ToldToStopAndKilled_EndsWithACheckpointOfEachReportedStep) {
  const Befallen all = PlayAll("told_to_stop_and_killed", 200);
  if (!all.all_seeds) return;
  EXPECT_GT(all.restarts, 100);
  EXPECT_GT(all.stopped, 50);
}

// Processes are killed at any moment, of every schedule, with messages lost and doubled. The run begins again
// from its checkpoints, and ends as the undisturbed one.
TEST(SimulatedWorld, ProcessesKilled_EveryRunEndsWithThePlainLoopsWeights) {
  const Befallen all = PlayAll("killed", 400);
  if (!all.all_seeds) return;
  EXPECT_GT(all.restarts, 200);
  EXPECT_GT(all.resumed, 50);
}

// The same where each process keeps what another one's ranks save, with checkpoints on the way and without.
// State that no living process has comes from the newest checkpoint.
TEST(SimulatedWorld, ProcessesKilledWithRedundancy_EveryRunEndsWithThePlainLoopsWeights) {
  const Befallen all = PlayAll("killed_with_redundancy", 400);
  if (!all.all_seeds) return;
  EXPECT_GT(all.restarts, 200);
  EXPECT_GT(all.from_copies, 30);
}

// One process is killed, of a run without checkpoints: no more is made again than was under way.
TEST(SimulatedWorld, OneProcessKilledWithRedundancy_MakesTheStepUnderWayAgain) {
  const Befallen all = PlayAll("one_killed_with_redundancy", 400);
  if (!all.all_seeds) return;
  EXPECT_GT(all.from_copies, 50);
}

// A job ends each process that takes it. The run fails, names the job, and spends three processes on it.
TEST(SimulatedWorld, PoisonJob_IsQuarantinedBehindThreeProcesses) { PlayAll("poison_job", 150); }

// A number is not finite, once: the step is made again, and the run ends as the undisturbed one. If it comes
// again, the run fails with the words of the job.
TEST(SimulatedWorld, NumberThatIsNotFinite_GivesTheStepUpOnAllStagesAndMakesItOnceMore) {
  PlayAll("non_finite", 200);
}

// Processes leave in order at any moment, some while others are killed. No work is lost where none is killed.
TEST(SimulatedWorld, ProcessesLeave_EveryRunEndsWithThePlainLoopsWeights) {
  const Befallen all = PlayAll("leave", 400);
  if (!all.all_seeds) return;
  EXPECT_GT(all.restarts, 200);
  EXPECT_GT(all.resumed, 50);
}

// The same where processes keep copies, and some are told to leave: copies leave with those that keep them.
TEST(SimulatedWorld, ProcessesLeaveWithRedundancy_NoStepIsMadeTwice) {
  const Befallen all = PlayAll("leave_with_redundancy", 200);
  if (!all.all_seeds) return;
  EXPECT_GT(all.restarts, 50);
}

// Ranks are ordered to any process at any moment. No step is made twice: behind checkpoints, or behind
// copies.
TEST(SimulatedWorld, RanksMove_EveryRunEndsWithThePlainLoopsWeightsAndNoStepIsMadeTwice) {
  const Befallen all = PlayAll("moved", 400);
  if (!all.all_seeds) return;
  EXPECT_GT(all.moved, 100);
  EXPECT_GT(all.from_copies, 20);
}

// If states migrate, the last jobs of a step wait for the first of the next one: a move behind copies that
// held these back never ended.
TEST(SimulatedWorld, RanksMoveBehindCopiesWhereStatesMigrate_EveryRunEnds) {
  int moved = 0;
  for (uint64_t seed = 2; seed <= 80; seed += 2) {
    WorldOptions options = FindWorld("moved")->options(seed);
    options.family = "fsdp";
    options.parameters = {{"residency", "migrating"}};
    options.rule = "cdp_v2";
    options.remote_backward = options.clips = false;
    options.stages = options.microbatches = 2 + static_cast<int>(seed % 3);
    options.processes = 2;
    options.redundancy = true;
    const WorldResult result = RunWorld(options);
    ASSERT_EQ(result.problem, "") << Text(options);
    moved += result.moved;
  }
  EXPECT_GT(moved, 5);
}

// The same while processes are killed, leave and are drained, and the coordinator is killed.
TEST(SimulatedWorld, RanksMoveWhileProcessesAreLost_EveryRunEndsWithThePlainLoopsWeights) {
  const Befallen all = PlayAll("moved_and_lost", 300);
  if (!all.all_seeds) return;
  EXPECT_GT(all.restarts, 100);
}

// The coordinator is killed at any moment, between any decision, its record and its effect; in some worlds
// workers are killed and leave too. No acknowledged step is lost or reported twice.
TEST(SimulatedWorld, CoordinatorKilled_EveryRunEndsWithThePlainLoopsWeights) {
  const Befallen all = PlayAll("coordinator_killed", 400);
  if (!all.all_seeds) return;
  EXPECT_GT(all.coordinator_kills, 300);
  EXPECT_GT(all.resumed, 50);
  EXPECT_GT(all.from_copies, 3);
}

// Only the coordinator is killed, again and again, of every schedule, while checkpoints are saved and weights
// are validated, some of which fail. Its processes come back: no job is made twice, and no attempt begins
// again.
TEST(SimulatedWorld, OnlyCoordinatorKilled_NoJobIsMadeTwice) {
  const Befallen all = PlayAll("only_coordinator_killed", 400);
  if (!all.all_seeds) return;
  EXPECT_GT(all.coordinator_kills, 600);
}

TEST(SimulatedWorld, SameSeedTwice_GivesTheSameTrace) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const WorldResult a = RunWorld(DrawWorld(seed)), b = RunWorld(DrawWorld(seed));
    ASSERT_EQ(a.trace, b.trace) << "seed " << seed;
    ASSERT_EQ(a.events, b.events) << "seed " << seed;
  }
}

TEST(SimulatedWorld, OtherSeed_GivesAnotherTrace) {
  WorldOptions a = DrawWorld(3), b = a;
  b.seed = 4;
  EXPECT_NE(RunWorld(a).trace, RunWorld(b).trace);
}

}  // namespace
}  // namespace weft::run_simulation_test
