// A world from a seed.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "schedules/families/families.h"
#include "tests/simulation/world.h"
#include "tests/simulation/world_random.h"

namespace weft {
namespace {

// Parameters for those families that have them, and sizes that they accept.
void DrawParameters(Random& random, WorldOptions* o) {
  const Family& family = *std::find_if(Families().begin(), Families().end(),
                                       [&](const Family& f) { return f.name == o->family; });
  const auto has = [&](const char* name) {
    return std::any_of(family.parameters.begin(), family.parameters.end(),
                       [&](const FamilyParameter& p) { return p.name == name; });
  };
  if (has("groups")) {
    o->parameters = {{"groups", absl::StrCat(random.From(1, o->microbatches))},
                     {"ranks", absl::StrCat(random.From(1, o->stages))}};
  } else if (has("ranks")) {
    const int ranks = random.From(1, 4);
    o->parameters = {{"ranks", absl::StrCat(ranks)}};
    o->stages = ranks * random.From(2, 3);
    o->microbatches = ranks * random.From(1, 3);
  }
  for (const FamilyParameter& p : family.parameters) {
    if (!p.values.empty() && !p.needs_rule)
      o->parameters[p.name] = p.values[random.From(0, static_cast<int>(p.values.size()) - 1)];
  }
  if (o->family == "pipedream") o->microbatches = 1;
  if (o->family == "cdp_mp") {
    o->rule = RuleNames()[random.From(0, 2)];
    o->stages = o->microbatches = random.From(1, 4);
  } else if (family.takes_rules && random.Chance(0.6)) {
    // The rules need as many ranks as stages and micro-batches.
    o->rule = RuleNames()[random.From(1, 2)];
    o->stages = o->microbatches = random.From(1, 5);
    o->parameters.clear();
    if (has("groups")) o->parameters = {{"groups", absl::StrCat(o->stages)}, {"ranks", "1"}};
    if (has("residency") && random.Chance(0.5)) o->parameters = {{"residency", "migrating"}};
  }
  if (!MakeSchedule(o->family, o->parameters, o->stages, o->microbatches).ok()) o->stages *= 2;
}

}  // namespace

WorldOptions DrawWorld(uint64_t seed) {
  Random random(seed ^ 0xabcdef);
  WorldOptions o;
  o.seed = seed;
  o.stages = random.From(1, 6);
  o.microbatches = random.From(1, 8);
  o.steps = random.From(1, 4);
  o.family = Families()[random.From(0, static_cast<int>(Families().size()) - 1)].name;
  DrawParameters(random, &o);
  auto schedule = MakeSchedule(o.family, o.parameters, o.stages, o.microbatches);
  if (!schedule.ok()) {
    o.family = "1f1b";
    o.parameters.clear();
    schedule = MakeSchedule(o.family, o.parameters, o.stages, o.microbatches);
  }
  o.remote_backward = random.Chance(0.3) && o.parameters.count("residency") == 0;
  o.budget = !o.remote_backward && random.Chance(0.4);
  o.processes = random.From(1, schedule.ok() ? std::min(schedule->ranks, 5) : 1);
  o.loss = random.Chance(0.7) ? 0.01 * random.From(0, 30) : 0;
  o.duplication = random.Chance(0.7) ? 0.01 * random.From(0, 50) : 0;
  o.delay_ns = random.Chance(0.5) ? 100'000 : 1000 * random.From(1, 20'000);
  o.transfer_delay_ns = 1000 * random.From(1, 5'000);
  o.job_ns = 1000 * random.From(1, 4'000);
  o.chain = random.Chance(0.6);
  if (random.Chance(0.3)) {
    o.first_step = random.From(1, 6);
    o.steps += o.first_step;
  }
  o.clips = random.Chance(0.3) && o.parameters.count("residency") == 0;
  return o;
}

}  // namespace weft
