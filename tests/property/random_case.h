// Draws any schedule with any durations and links from a seed.
#ifndef WEFT_TESTS_PROPERTY_RANDOM_CASE_H_
#define WEFT_TESTS_PROPERTY_RANDOM_CASE_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/property/random_inputs.h"

namespace weft {

struct RandomCase {
  RunSchedule schedule;
  SimulationOptions options;
  std::string text;
};

// Draws any placement, of the weights too; priorities of their own in every third.
inline std::map<std::string, std::string> DrawFormulas(std::mt19937_64& rng) {
  const auto number = [&](int most) { return static_cast<int>(rng() % (most + 1)); };
  const auto sum = [&] {
    return absl::StrCat("(", number(3), "*s + ", number(3), "*b + ", number(2), ") % W");
  };
  std::map<std::string, std::string> parameters = {{"workers", absl::StrCat(1 + number(5))},
                                                   {"compute", sum()}};
  if (number(1) == 0) parameters["weights"] = number(1) == 0 ? "s % W" : sum();
  if (number(2) == 0) parameters["split_backward"] = "true";
  if (number(2) == 0) {
    parameters["priority"] = absl::StrCat("((k ", number(1) == 0 ? "==" : "!=", " forward)*4 + k)*S*B + ",
                                          number(1) == 0 ? "b*S + s" : "s*B + b");
  }
  return parameters;
}

// Returns a pattern for the family `periodic`: every job of a window has an instant of its own, and each one
// starts at its instant of the first window in which the one before it has started.
inline std::map<std::string, std::string> DrawPattern(std::mt19937_64& rng, int stages) {
  const int batches = 1 + static_cast<int>(rng() % 3), passes = 2 * stages, window = batches * passes;
  std::vector<int> instants(window);
  std::iota(instants.begin(), instants.end(), 0);
  std::shuffle(instants.begin(), instants.end(), rng);
  std::vector<int> forward(batches * stages), backward(batches * stages), placement(stages);
  for (int batch = 0; batch < batches; ++batch) {
    for (int pass = 0, at = -1; pass < passes; ++pass) {
      int& start =
          pass < stages ? forward[batch * stages + pass] : backward[batch * stages + passes - 1 - pass];
      start = instants[batch * passes + pass];
      while (start <= at) start += window;
      at = start;
    }
  }
  const int ranks = 1 + static_cast<int>(rng() % stages);
  for (int s = 0; s < stages; ++s) placement[s] = s < ranks ? s : static_cast<int>(rng() % ranks);
  return {{"placement", absl::StrJoin(placement, "+")},
          {"window", absl::StrCat(window)},
          {"forward", absl::StrJoin(forward, "+")},
          {"backward", absl::StrJoin(backward, "+")}};
}

inline RandomCase DrawCase(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int from, int to) { return from + static_cast<int>(rng() % (to - from + 1)); };
  int stages = pick(1, 12), microbatches = pick(1, 16);
  std::map<std::string, std::string> parameters;
  // The choice is among every family of the catalogue, so that a new one is drawn as soon as it is there, and
  // formulas.
  const size_t which = rng() % (Families().size() + 2);
  const std::string name = which < Families().size() ? Families()[which].name : "custom";
  if (name == "custom") {
    parameters = DrawFormulas(rng);
  } else if (name == "lpp" || name == "fslpp") {
    parameters = {{"groups", absl::StrCat(pick(1, microbatches))}, {"ranks", absl::StrCat(pick(1, stages))}};
  } else if (name == "depth_first" || name == "breadth_first" || name == "interleaved") {
    const int ranks = pick(1, 6);
    stages = ranks * pick(2, 4);
    if (name == "interleaved") {
      const int group = pick(ranks, 2 * ranks);
      microbatches = group * pick(1, 3);
      parameters["group"] = absl::StrCat(group);
    }
    parameters["ranks"] = absl::StrCat(ranks);
  } else if (name == "ddp") {
    if (pick(0, 1) == 1) parameters["ranks"] = absl::StrCat(pick(1, microbatches));
  } else if (name == "fsdp") {
    parameters["shard"] = pick(0, 1) == 0 ? "stage" : "width";
  } else if (name == "zb_v" || name == "v_half" || name == "v_min") {
    stages += stages % 2;
  } else if (name == "dualpipe" || name == "dualpipe_v") {
    stages += stages % 2;
    microbatches = 2 * stages + 2 * pick(0, 3);
  } else if (name == "pipedream") {
    microbatches = 1;
  } else if (name == "cdp_mp") {
    stages = microbatches = pick(1, 6);
  } else if (name == "periodic") {
    parameters = DrawPattern(rng, stages);
  }
  // The cyclic rules are tried where the sizes that were drawn allow them.
  const std::string rule = RuleNames()[pick(0, 2)];
  const bool wide = parameters.count("shard") != 0 && parameters["shard"] == "width";
  const bool ruled = rule != "sync" && !wide &&
                     std::any_of(Families().begin(), Families().end(),
                                 [&](const Family& f) { return f.name == name && f.takes_rules; });
  if (ruled) {
    stages = microbatches = pick(1, 6);
    if (name == "ddp") parameters.clear();
    if (name == "lpp") parameters = {{"groups", absl::StrCat(stages)}, {"ranks", "1"}};
    if (name == "fsdp" && pick(0, 1) == 1) parameters["residency"] = "migrating";
  }
  RandomCase c;
  auto schedule = MakeSchedule(name, parameters, stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  c.schedule.scheme = *schedule;
  const absl::Status applied = ApplyRule(ruled ? rule : "sync", name, &c.schedule.scheme);
  EXPECT_TRUE(applied.ok()) << applied;
  c.schedule.terms.takes_norm = seed % 4 == 0 && parameters.count("residency") == 0;
  const bool chain = seed % 3 != 0;
  if (!chain) c.schedule.terms.inputs = RandomInputs(seed, stages);
  c.options.steps = pick(1, 4);
  c.options.record_jobs = true;
  for (int k = 0; k < kJobKinds; ++k) {
    auto& d = c.options.duration[k];
    d.clear();
    const bool none = k >= static_cast<int>(JobKind::kReduce) && pick(0, 1) == 0;
    for (int s = 0; s < stages; ++s) d.push_back(none ? 0 : pick(1, 9));
  }
  if (pick(0, 1) == 1) {
    c.options.latency = pick(0, 3);
    c.options.bandwidth = pick(0, 4);
    c.options.activation = {static_cast<double>(pick(0, 20))};
    c.options.weight = {static_cast<double>(pick(0, 40))};
  }
  c.text = absl::StrCat("seed ", seed, ": ", c.schedule.scheme.name, " S=", stages, " B=", microbatches,
                        " T=", c.options.steps, chain ? "" : ", no chain",
                        c.schedule.terms.takes_norm ? ", clips" : "");
  return c;
}

}  // namespace weft

#endif  // WEFT_TESTS_PROPERTY_RANDOM_CASE_H_
