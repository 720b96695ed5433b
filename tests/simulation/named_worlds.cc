#include "tests/simulation/named_worlds.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

int64_t Milliseconds(uint64_t count) { return 1'000'000 * static_cast<int64_t>(count); }
int Of(uint64_t seed, int n) { return static_cast<int>(seed % n); }

// A world whose processes are lost or change: the run begins again there.
WorldOptions DrawChangingWorld(uint64_t seed) {
  WorldOptions o = DrawWorld(seed);
  o.snapshot_every = Of(seed, 4);
  if (seed % 3 != 0) o.expand_ns = Milliseconds(10);
  if (seed % 5 == 0) o.launch_ahead = 3;
  return o;
}

// ---- messages, devices, snapshots

WorldOptions LaunchedAhead(uint64_t seed) {
  WorldOptions o = DrawWorld(seed);
  o.launch_ahead = 2 + Of(seed, 3);
  return o;
}

WorldOptions FetchedWeights(uint64_t seed) {
  WorldOptions o = DrawWorld(seed);
  o.family = "fslpp";
  o.parameters = {{"groups", "6"}, {"ranks", "1"}};
  o.rule = "sync";
  o.stages = 6;
  o.microbatches = 7;
  o.processes = 4;
  o.remote_backward = false;
  return o;
}

WorldOptions Snapshots(uint64_t seed) {
  WorldOptions o = DrawWorld(seed);
  o.steps += 1 + Of(seed, 6);
  o.snapshot_every = 1 + Of(seed, 3);
  o.save_ns = seed % 2 == 0 ? 50'000 : Milliseconds(20);
  o.failing_saves = seed % 4 == 0 ? 0.3 : 0;
  if (seed % 5 == 0) o.launch_ahead = 3;
  return o;
}

WorldOptions Validated(uint64_t seed) {
  WorldOptions o = DrawWorld(seed);
  o.steps += 1 + Of(seed, 6);
  o.validate_every = 1 + Of(seed, 4);
  o.snapshot_every = Of(seed, 3);
  o.failing_saves = seed % 4 == 0 ? 0.3 : 0;
  o.failing_validations = seed % 5 == 0 ? 0.3 : 0;
  o.validation_ns = seed % 2 == 0 ? 500'000 : Milliseconds(50);
  return o;
}

WorldOptions ToldToStop(uint64_t seed) {
  WorldOptions o = DrawWorld(seed);
  o.steps = o.first_step + 40;
  o.snapshot_every = seed % 3 == 0 ? 4 : 0;
  o.validate_every = seed % 4 == 0 ? 3 : 0;
  o.stop_at_ns = Milliseconds(10 + seed * 7 % 200);
  return o;
}

// ---- processes

WorldOptions ToldToStopAndKilled(uint64_t seed) {
  WorldOptions o = DrawChangingWorld(seed);
  o.steps = o.first_step + 40;
  o.snapshot_every = seed % 3 == 0 ? 4 : 0;
  o.redundancy = seed % 2 == 0 && o.processes > 1;
  o.stop_at_ns = Milliseconds(10 + seed * 7 % 200);
  o.kills = 1 + Of(seed, 3);
  o.kill_within_ns = o.stop_at_ns + Milliseconds(30);
  return o;
}

WorldOptions Killed(uint64_t seed) {
  WorldOptions o = DrawChangingWorld(seed);
  o.steps += 2 + Of(seed, 7);
  o.kills = 1 + Of(seed, 3);
  o.kill_within_ns = Milliseconds(5 + seed * 13 % 400);
  return o;
}

WorldOptions KilledWithRedundancy(uint64_t seed) {
  WorldOptions o = DrawChangingWorld(seed);
  o.steps += 2 + Of(seed, 9);
  o.redundancy = o.processes > 1;
  o.kills = 1 + Of(seed, 3);
  o.leaves = seed % 7 == 0 ? 1 : 0;
  o.coordinator_kills = seed % 11 == 0 ? 1 : 0;
  o.kill_within_ns = Milliseconds(5 + seed * 13 % 400);
  return o;
}

WorldOptions OneKilledWithRedundancy(uint64_t seed) {
  WorldOptions o = DrawChangingWorld(seed);
  o.family = seed % 2 == 0 ? "1f1b" : "zb_h1";
  o.parameters.clear();
  o.rule = "sync";
  o.remote_backward = o.budget = false;
  o.launch_ahead = 1;
  o.stages = o.microbatches = 4;
  o.first_step = 0;
  o.steps = 8;
  o.processes = 2 + Of(seed, 3);
  o.snapshot_every = 0;
  o.redundancy = true;
  o.kills = 1;
  o.kill_within_ns = Milliseconds(200);
  return o;
}

std::string AtMostOneStepAgain(const WorldOptions&, const WorldResult& result) {
  return result.steps_again <= 1 ? "" : absl::StrCat(result.steps_again, " steps were made again");
}

WorldOptions Leave(uint64_t seed) {
  WorldOptions o = DrawChangingWorld(seed);
  o.steps += 2 + Of(seed, 9);
  o.leaves = 1 + Of(seed, 3);
  o.kills = seed % 4 == 0 ? 1 : 0;
  o.kill_within_ns = Milliseconds(5 + seed * 17 % 300);
  return o;
}

WorldOptions LeaveWithRedundancy(uint64_t seed) {
  WorldOptions o = DrawChangingWorld(seed);
  o.steps += 2 + Of(seed, 9);
  o.redundancy = o.processes > 1;
  o.leaves = Of(seed, 3);
  o.drains = 1 + Of(seed, 2);
  o.kill_within_ns = Milliseconds(5 + seed * 17 % 300);
  return o;
}

WorldOptions Moved(uint64_t seed) {
  WorldOptions o = DrawChangingWorld(seed);
  o.steps += 2 + Of(seed, 9);
  o.spares = Of(seed, 3);
  o.redundancy = o.processes > 1 && seed % 2 == 0;
  o.moves = 1 + Of(seed, 4);
  o.kill_within_ns = Milliseconds(5 + seed * 17 % 300);
  return o;
}

// State that migrates goes by while the next step is being made, which may end before the checkpoint is
// whole.
std::string NoStepAgain(const WorldOptions& o, const WorldResult& result) {
  const auto residency = o.parameters.find("residency");
  const int most = residency != o.parameters.end() && residency->second == "migrating" ? 1 : 0;
  return result.steps_again <= most
             ? ""
             : absl::StrCat(result.steps_again, " steps were made again, because ", result.restart_reason);
}

WorldOptions MovedAndLost(uint64_t seed) {
  WorldOptions o = Moved(seed);
  o.kills = seed % 3 == 0 ? 1 : 0;
  o.leaves = seed % 5 == 0 ? 1 : 0;
  o.drains = seed % 4 == 0 ? 1 : 0;
  o.coordinator_kills = seed % 7 == 0 ? 1 : 0;
  return o;
}

WorldOptions CoordinatorKilled(uint64_t seed) {
  WorldOptions o = DrawChangingWorld(seed);
  o.launch_ahead = 1;
  o.steps += 2 + Of(seed, 9);
  o.coordinator_kills = 1 + Of(seed, 3);
  o.dies_with_coordinator = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 0.2 : 0;
  o.redundancy = seed % 2 == 0 && o.processes > 1;
  if (seed % 7 == 0) o.launch_ahead = 3;
  o.kills = seed % 4 == 0 ? 1 : 0;
  o.leaves = seed % 5 == 0 ? 1 : 0;
  o.kill_within_ns = Milliseconds(5 + seed * 17 % 300);
  return o;
}

WorldOptions OnlyCoordinatorKilled(uint64_t seed) {
  WorldOptions o = DrawChangingWorld(seed);
  o.launch_ahead = seed % 7 == 0 ? 3 : 1;
  o.steps += 2 + Of(seed, 9);
  o.validate_every = seed % 3 == 0 ? 1 + Of(seed, 4) : 0;
  o.validation_ns = seed % 2 == 0 ? 500'000 : Milliseconds(20);
  o.failing_saves = seed % 4 == 0 ? 0.3 : 0;
  o.redundancy = seed % 2 == 0 && o.processes > 1;
  o.save_ns = seed % 5 == 0 && !o.redundancy ? Milliseconds(20) : 50'000;
  o.coordinator_kills = 1 + Of(seed, 6);
  o.kill_within_ns = Milliseconds(5 + seed * 17 % 300);
  return o;
}

// A run that began with fewer processes than it may have goes on with more, once one is free.
std::string NoJobAgain(const WorldOptions&, const WorldResult& result) {
  const bool expands = result.restart_reason.find("is free to take part") != std::string::npos;
  if (result.jobs_again == 0 && (result.restarts == 0 || expands)) return "";
  return absl::StrCat(result.jobs_again, " jobs were made again, in ", result.restarts,
                      " further attempts, the last because ", result.restart_reason);
}

// ---- jobs that go wrong

// Draws a forward of the run from the seed.
Job DrawJob(uint64_t seed, const WorldOptions& o) {
  const auto below = [&seed](int n) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    return static_cast<int>((seed >> 33) % n);
  };
  return Job::Compute(o.first_step + below(o.steps - o.first_step), below(o.stages), below(o.microbatches),
                      JobKind::kForward);
}

WorldOptions PoisonJob(uint64_t seed) {
  WorldOptions o = DrawWorld(seed);
  o.snapshot_every = Of(seed, 3);
  o.expand_ns = Milliseconds(10);
  o.bad_job = {BadJob::Kind::kDeadly, DrawJob(seed, o)};
  return o;
}

std::string IsQuarantined(const WorldOptions&, const WorldResult& result) {
  if (result.failure.find("quarantined: 3 processes in a row") == std::string::npos)
    return absl::StrCat("the job was not quarantined: ", result.failure);
  return result.restarts == 2 ? ""
                              : absl::StrCat("the run began again ", result.restarts, " times, not twice");
}

WorldOptions NonFinite(uint64_t seed) {
  WorldOptions o = DrawWorld(seed);
  o.snapshot_every = Of(seed, 3);
  if (seed % 5 == 0) o.launch_ahead = 3;
  o.bad_job = {BadJob::Kind::kNonFinite, DrawJob(seed, o), seed % 4 == 0 ? 2 : 1};
  return o;
}

std::string IsMadeOnceMore(const WorldOptions& o, const WorldResult& result) {
  if (result.restarts != 1) return absl::StrCat("the run began again ", result.restarts, " times, not once");
  const std::string words = Describe(o.bad_job.job) + " is nan; the step was made twice";
  const bool failed = result.failure.find(words) != std::string::npos;
  return failed == (o.bad_job.times == 2) ? "" : absl::StrCat("the run ended otherwise: ", result.failure);
}

}  // namespace

const std::vector<NamedWorld>& NamedWorlds() {
  static const auto* const kWorlds = new std::vector<NamedWorld>{
      {"messages", "messages are lost, doubled, delayed and reordered", DrawWorld},
      {"launched_ahead", "devices are given two to four jobs of a rank ahead", LaunchedAhead},
      {"fetched_weights", "weights are fetched for two jobs at a time, some from ranks of the same process",
       FetchedWeights},
      {"snapshots", "snapshots behind any step are of one step and whole, on slow and full disks", Snapshots},
      {"validated", "validations are of every multiple, however slow or failing", Validated},
      {"told_to_stop", "a run that is told to stop ends with a whole checkpoint", ToldToStop},
      {"told_to_stop_and_killed", "the same while processes are killed: each reported step is in it",
       ToldToStopAndKilled},
      {"killed", "processes are killed; the run begins again from its checkpoints", Killed},
      {"killed_with_redundancy",
       "the same with copies in memory; some processes leave, some coordinators are killed",
       KilledWithRedundancy},
      {"one_killed_with_redundancy", "no more is made again than the step under way", OneKilledWithRedundancy,
       AtMostOneStepAgain},
      {"leave", "processes leave in order, some while others are killed", Leave},
      {"leave_with_redundancy", "processes leave or are drained: no step is made twice, behind copies either",
       LeaveWithRedundancy, NoStepAgain},
      {"moved", "ranks are ordered to any process: no step is made twice", Moved, NoStepAgain},
      {"moved_and_lost",
       "the same while processes are killed, leave, are drained, and coordinators are killed", MovedAndLost},
      {"coordinator_killed", "the coordinator is killed between any decision, its record and its effect",
       CoordinatorKilled},
      {"only_coordinator_killed", "its processes come back: no job is made twice", OnlyCoordinatorKilled,
       NoJobAgain},
      {"poison_job", "a job that ends each process that takes it is quarantined behind three", PoisonJob,
       IsQuarantined},
      {"non_finite", "a number that is not finite: the step is made once more", NonFinite, IsMadeOnceMore}};
  return *kWorlds;
}

const NamedWorld* FindWorld(absl::string_view name) {
  const auto found = std::find_if(NamedWorlds().begin(), NamedWorlds().end(),
                                  [&](const NamedWorld& world) { return world.name == name; });
  return found == NamedWorlds().end() ? nullptr : &*found;
}

WorldResult Play(const NamedWorld& world, uint64_t seed) {
  const WorldOptions options = world.options(seed);
  WorldResult result = RunWorld(options);
  if (result.problem.empty() && world.check != nullptr) result.problem = world.check(options, result);
  return result;
}

std::string Describe(const NamedWorld& world, uint64_t seed) {
  return Describe(world.name, world.options(seed));
}

std::string Describe(absl::string_view world, const WorldOptions& o) {
  std::string text = absl::StrCat(world, " --seed ", o.seed, ": ", o.family);
  for (const auto& [name, value] : o.parameters) absl::StrAppend(&text, ",", name, "=", value);
  absl::StrAppend(&text, ",rule=", o.rule, " S=", o.stages, " B=", o.microbatches, " steps ", o.first_step,
                  " to ", o.steps, ", processes ", o.processes, ", loss ", o.loss, ", duplication ",
                  o.duplication);
  for (const auto& [is_so, word] : {std::pair(!o.chain, "no chain"),
                                    {o.remote_backward, "remote backward"},
                                    {o.budget, "budget"},
                                    {o.clips, "clips"},
                                    {o.redundancy, "redundancy"}}) {
    if (is_so) absl::StrAppend(&text, ", ", word);
  }
  for (const auto& [count, word] : {std::pair(o.snapshot_every, "snapshot every"),
                                    {o.validate_every, "validation every"},
                                    {o.kills, "kills"},
                                    {o.leaves, "leaves"},
                                    {o.drains, "drains"},
                                    {o.moves, "moves"},
                                    {o.spares, "spares"},
                                    {o.coordinator_kills, "coordinator kills"}}) {
    if (count > 0) absl::StrAppend(&text, ", ", word, " ", count);
  }
  if (o.launch_ahead > 1) absl::StrAppend(&text, ", launched ahead ", o.launch_ahead);
  return text;
}

}  // namespace weft
