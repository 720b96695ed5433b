#include "schedules/families.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

using Parameters = std::map<std::string, std::string>;

// Unique numbers for (step, backward?, major, minor): the first differing part decides.
int64_t Pack(const Job& job, bool forward_first, int64_t major, int64_t minor, int64_t minors,
             int64_t majors) {
  const bool late = (job.kind == JobKind::kForward) != forward_first;
  return ((int64_t{job.step} * 2 + (late ? 1 : 0)) * majors + major) * minors + minor;
}

// Forwards before backwards (or the reverse), then in order of micro-batches.
std::function<int64_t(const Job&)> ByMicrobatch(int stages, int microbatches, bool forward_first) {
  return [=](const Job& j) { return Pack(j, forward_first, j.microbatch, j.stage, stages, microbatches); };
}

Schedule Sized(absl::string_view name, int stages, int microbatches, int ranks) {
  Schedule s;
  s.name = std::string(name);
  s.stages = stages;
  s.microbatches = microbatches;
  s.ranks = ranks;
  return s;
}

// A parameter that must be a whole number >= 1.
absl::StatusOr<int> Positive(absl::string_view family, const Parameters& parameters,
                             const std::string& name) {
  const auto it = parameters.find(name);
  if (it == parameters.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s needs `%s`, as in %s,%s=2", family, name, family, name));
  }
  int value = 0;
  if (!absl::SimpleAtoi(it->second, &value) || value < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s is '%s'; it must be a whole number of at least 1", family, name, it->second));
  }
  return value;
}

absl::StatusOr<Schedule> Ddp(const Parameters&, int stages, int microbatches) {
  Schedule s = Sized("ddp", stages, microbatches, microbatches);
  s.compute = s.weights = [](const Job& j) { return j.microbatch; };
  s.priority = ByMicrobatch(stages, microbatches, true);
  s.residency = Residency::kReplicated;
  return s;
}

absl::StatusOr<Schedule> GPipe(const Parameters&, int stages, int microbatches) {
  Schedule s = Sized("gpipe", stages, microbatches, stages);
  s.compute = s.weights = [](const Job& j) { return j.stage; };
  s.priority = ByMicrobatch(stages, microbatches, true);
  return s;
}

absl::StatusOr<Schedule> OneForwardOneBackward(const Parameters&, int stages, int microbatches) {
  Schedule s = Sized("1f1b", stages, microbatches, stages);
  s.compute = s.weights = [](const Job& j) { return j.stage; };
  s.priority = ByMicrobatch(stages, microbatches, false);
  s.limit = [stages](Rank, int stage) -> std::optional<int> { return stages - stage; };
  return s;
}

// Looped pipelines: G groups of R ranks, each a ring that a micro-batch walks round (h of DESIGN.md section
// 2).
absl::StatusOr<Schedule> Looped(const Parameters& parameters, int stages, int microbatches) {
  const absl::StatusOr<int> groups = Positive("lpp", parameters, "groups");
  if (!groups.ok()) return groups.status();
  const absl::StatusOr<int> ring = Positive("lpp", parameters, "ranks");
  if (!ring.ok()) return ring.status();
  const int64_t g = *groups, r = *ring;
  if (g * r > 1'000'000) {
    return absl::InvalidArgumentError(
        absl::StrFormat("lpp: %d groups of %d ranks are more than 1000000 ranks", g, r));
  }
  if (g > microbatches) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "lpp: groups=%d with %d micro-batches leaves groups without work; use at most %d groups", g,
        microbatches, microbatches));
  }
  if (r > stages) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "lpp: ranks=%d with %d stages leaves ranks without work; use at most %d ranks a group", r, stages,
        stages));
  }
  Schedule s =
      Sized(absl::StrCat("lpp,groups=", g, ",ranks=", r), stages, microbatches, static_cast<int>(g * r));
  s.compute = s.weights = [g, r](const Job& j) {
    return static_cast<Rank>(r * j.microbatch % (g * r) + j.stage % r);
  };
  s.priority = ByMicrobatch(stages, microbatches, true);
  return s;
}

struct Entry {
  Family family;
  absl::StatusOr<Schedule> (*make)(const Parameters&, int stages, int microbatches);
};

const std::vector<Entry>& Catalogue() {
  static const auto* entries = new std::vector<Entry>{
      {{"1f1b", "pipeline, one forward one backward: at most S - s activations on stage s", {}},
       OneForwardOneBackward},
      {{"ddp", "data parallel: rank b computes micro-batch b, weights on every rank", {}}, Ddp},
      {{"gpipe", "pipeline, all forwards before the backwards", {}}, GPipe},
      {{"lpp",
        "looped pipelines: groups of ranks, each a ring over the stages",
        {{"groups", "number of groups G"}, {"ranks", "ranks of each group R; W = G*R"}}},
       Looped},
  };
  return *entries;
}

int Edits(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

absl::Status CheckParameters(const Family& family, const Parameters& parameters) {
  std::vector<std::string> known;
  for (const FamilyParameter& p : family.parameters) known.push_back(p.name);
  for (const auto& [key, value] : parameters) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (known.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s has no parameters; remove `%s`", family.name, key));
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has no parameter `%s`; did you mean `%s`? (it has %s)", family.name, key,
                        Nearest(key, known), absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  int least = 0;
  for (const std::string& c : candidates) {
    const int edits = Edits(word, c);
    if (best.empty() || edits < least) {
      best = c;
      least = edits;
    }
  }
  return best;
}

const std::vector<Family>& Families() {
  static const auto* families = [] {
    auto* all = new std::vector<Family>;
    for (const Entry& e : Catalogue()) all->push_back(e.family);
    return all;
  }();
  return *families;
}

absl::StatusOr<Schedule> MakeSchedule(absl::string_view name, const Parameters& parameters, int stages,
                                      int microbatches) {
  constexpr int kMost = 1'000'000;
  if (stages < 1 || stages > kMost || microbatches < 1 || microbatches > kMost) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "stages (%d) and micro-batches (%d) must be from 1 to %d", stages, microbatches, kMost));
  }
  if (int64_t{stages} * microbatches > 50'000'000) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d stages of %d micro-batches are more than 50000000 jobs a step", stages, microbatches));
  }
  std::vector<std::string> names;
  for (const Entry& e : Catalogue()) {
    names.push_back(e.family.name);
    if (e.family.name != name) continue;
    if (absl::Status s = CheckParameters(e.family, parameters); !s.ok()) return s;
    return e.make(parameters, stages, microbatches);
  }
  return absl::NotFoundError(absl::StrFormat("no schedule is called '%s'; did you mean '%s'? (there are %s)",
                                             name, Nearest(name, names), absl::StrJoin(names, ", ")));
}

}  // namespace weft
