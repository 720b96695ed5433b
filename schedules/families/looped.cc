// Pipelines in which a rank comes round for several stages, dispatched greedily: lpp and fslpp in G groups of
// R ranks, depth_first and breadth_first on one ring (arXiv 2211.05953).
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/families/family.h"
#include "schedules/families/tie_rule.h"

namespace weft {
namespace {

struct Groups {
  int64_t groups, ring;

  // Returns the rank at which stage `s` meets micro-batch `b`.
  Rank At(int s, int b) const { return static_cast<Rank>(ring * b % (groups * ring) + s % ring); }
};

absl::StatusOr<Groups> ReadGroups(absl::string_view family, const FamilyParameters& parameters, int stages,
                                  int microbatches) {
  const bool grouped = parameters.count("groups") > 0, ranked = parameters.count("ranks") > 0;
  if (!grouped || !ranked) {
    const char* const missing = grouped ? "`ranks`" : ranked ? "`groups`" : "`groups` and `ranks`";
    return absl::InvalidArgumentError(
        absl::StrFormat("%s needs %s, as in %s,groups=2,ranks=4", family, missing, family));
  }
  const absl::StatusOr<int> groups = PositiveParameter(family, parameters, "groups");
  if (!groups.ok()) return groups.status();
  const absl::StatusOr<int> ring = PositiveParameter(family, parameters, "ranks");
  if (!ring.ok()) return ring.status();
  const int64_t g = *groups, r = *ring;
  if (g * r > 1'000'000) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d groups of %d ranks are more than 1000000 ranks", family, g, r));
  }
  if (g > microbatches) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: groups=%d with %d micro-batches leaves groups without work; use at most %d groups", family, g,
        microbatches, microbatches));
  }
  if (r > stages) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: ranks=%d with %d stages leaves ranks without work; use at most %d ranks per group", family, r,
        stages, stages));
  }
  return Groups{g, r};
}

absl::StatusOr<Schedule> InGroups(absl::string_view family, const FamilyParameters& parameters, int stages,
                                  int microbatches) {
  const absl::StatusOr<Groups> h = ReadGroups(family, parameters, stages, microbatches);
  if (!h.ok()) return h.status();
  Schedule s = SizedSchedule(absl::StrCat(family, ",groups=", h->groups, ",ranks=", h->ring), stages,
                             microbatches, static_cast<int>(h->groups * h->ring));
  s.compute = s.weights = [h = *h](const Job& j) { return h.At(j.stage, j.microbatch); };
  return WithTieRule(kForwardsFirst, family, parameters, std::move(s));
}

absl::StatusOr<Schedule> Lpp(const FamilyParameters& parameters, int stages, int microbatches) {
  return InGroups("lpp", parameters, stages, microbatches);
}

// Makes lpp with one owner a stage: h(s, s), whose ranks all differ exactly if S <= lcm(G, R).
absl::StatusOr<Schedule> Fslpp(const FamilyParameters& parameters, int stages, int microbatches) {
  absl::StatusOr<Schedule> s = InGroups("fslpp", parameters, stages, microbatches);
  if (!s.ok()) return s;
  const absl::StatusOr<Groups> h = ReadGroups("fslpp", parameters, stages, microbatches);
  s->weights = [h = *h](const Job& j) { return h.At(j.stage, j.stage); };
  s->keeps_fetched = true;
  return s;
}

absl::StatusOr<Schedule> OnOneRing(absl::string_view family, const FamilyParameters& parameters, int stages,
                                   int microbatches) {
  const absl::StatusOr<int> ranks = RanksOfLoop(family, parameters, stages);
  if (!ranks.ok()) return ranks.status();
  Schedule s = SizedSchedule(absl::StrCat(family, ",ranks=", *ranks), stages, microbatches, *ranks);
  s.compute = s.weights = [w = *ranks](const Job& j) { return j.stage % w; };
  return WithTieRule(family, family, parameters, std::move(s));  // the order has the family's name
}

// New micro-batches enter whenever nothing older is ready, so activations pile up on the first rank.
absl::StatusOr<Schedule> DepthFirst(const FamilyParameters& parameters, int stages, int microbatches) {
  return OnOneRing(kDepthFirst, parameters, stages, microbatches);
}

absl::StatusOr<Schedule> BreadthFirst(const FamilyParameters& parameters, int stages, int microbatches) {
  return OnOneRing(kBreadthFirst, parameters, stages, microbatches);
}

}  // namespace

std::vector<FamilyEntry> LoopedFamilies() {
  const std::vector<FamilyParameter> groups = TieRuleParameters(
      kForwardsFirst, {{"groups", "number of groups G"}, {"ranks", "number of ranks per group R; W = G*R"}});
  const auto ring = [](absl::string_view order) {
    return TieRuleParameters(order,
                             {{"ranks", "number of ranks W; the number of stages is a multiple of W"}});
  };
  return {
      {{"breadth_first", "the stages go round W ranks; all micro-batches of a stage before the next stage",
        ring(kBreadthFirst)},
       BreadthFirst},
      {{"depth_first", "the stages go round W ranks; the oldest micro-batch first", ring(kDepthFirst)},
       DepthFirst},
      {{"fslpp", "looped pipelines; the weights of each stage are on one rank, and others fetch them",
        groups},
       Fslpp},
      {{"lpp", "looped pipelines: groups of ranks; each group is a ring over the stages", groups, true}, Lpp},
  };
}

}  // namespace weft
