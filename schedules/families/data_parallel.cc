// Data parallelism: rank b mod W computes micro-batch b on every stage; the weights are on every rank (ddp),
// or each stage's on one (fsdp, where W = B).
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "schedules/families/family.h"
#include "schedules/families/tie_rule.h"
#include "schedules/sync/catalogue.h"

namespace weft {
namespace {

// A rank that has several micro-batches accumulates their gradients.
absl::StatusOr<Schedule> Ddp(const FamilyParameters& parameters, int stages, int microbatches) {
  const absl::StatusOr<int> ranks = PositiveParameter("ddp", parameters, "ranks", microbatches);
  if (!ranks.ok()) return ranks.status();
  if (*ranks > microbatches) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ddp: %d micro-batches on ranks=%d leave ranks without one; use at most %d ranks, or "
                        "more micro-batches",
                        microbatches, *ranks, microbatches));
  }
  Schedule s = SizedSchedule("ddp", stages, microbatches, *ranks);
  s.compute = s.weights = [ranks = *ranks](const Job& j) { return j.microbatch % ranks; };
  // One micro-batch after the other, so that the activations of one are alive.
  return WithTieRule(kOneForwardOneBackward, "ddp", parameters, std::move(s));
}

// Stage by stage: every rank but the owner fetches a stage's weights for its forward and again for its
// backward, and sends its gradient to the owner, which alone keeps the optimizer's state. With fewer stages
// than ranks some ranks own nothing. With migrating states the owner is the rank that computes: the state of
// a stage goes along with the micro-batches that visit it, from rank to rank. By width: every rank owns a
// slice of every stage, gathers the others' for each forward and backward, and scatters its gradient to them.
absl::StatusOr<Schedule> Fsdp(const FamilyParameters& parameters, int stages, int microbatches) {
  const auto it = parameters.find("shard");
  const std::string shard = it == parameters.end() ? "stage" : it->second;
  if (shard != "stage" && shard != "width") {
    return absl::InvalidArgumentError(
        absl::StrFormat("fsdp: shard is '%s'; it must be stage or width", shard));
  }
  const auto where = parameters.find("residency");
  const std::string residency = where == parameters.end() ? "sharded" : where->second;
  if (residency != "sharded" && residency != "migrating") {
    return absl::InvalidArgumentError(
        absl::StrFormat("fsdp: residency is '%s'; it must be sharded or migrating", residency));
  }
  const bool migrates = residency == "migrating";
  if (migrates && shard == "width") {
    return absl::InvalidArgumentError(
        "fsdp: weights that are cut by width stay with their owners; residency=migrating goes with "
        "shard=stage");
  }
  const char* name = migrates ? "fsdp,residency=migrating" : shard == "width" ? "fsdp,shard=width" : "fsdp";
  Schedule s = SizedSchedule(name, stages, microbatches, microbatches);
  s.compute = [](const Job& j) { return j.microbatch; };
  s.weights = [microbatches](const Job& j) { return j.stage % microbatches; };
  if (shard == "width") {
    s.weights = s.compute;
    s.sync = ShardedByWidth([microbatches](int) {
      std::vector<Rank> all(microbatches);
      std::iota(all.begin(), all.end(), 0);
      return all;
    });
  }
  if (migrates) {
    s.weights = s.compute;
    s.sync = Migrating(nullptr);  // the ticks are the cyclic order's
  }
  return WithTieRule(kForwardsFirst, "fsdp", parameters, std::move(s));
}

}  // namespace

std::vector<FamilyEntry> DataParallelFamilies() {
  return {
      {{"ddp", "data parallel: micro-batches are dealt to the ranks, weights on every rank",
        TieRuleParameters(kOneForwardOneBackward, {{"ranks",
                                                    "number of ranks (default: one a micro-batch)",
                                                    {},
                                                    false,
                                                    /*deals_microbatches=*/true}}),
        true},
       Ddp},
      {{"fsdp", "data parallel, the weights of stage s on rank s mod W alone, fetched for use",
        TieRuleParameters(
            kForwardsFirst,
            {{"shard", "stage (default), or width: a slice of every stage on every rank", {"stage", "width"}},
             {"residency",
              "sharded (default), or migrating: the state of a stage moves along with the micro-batches of a "
              "cyclic "
              "rule",
              {"sharded", "migrating"},
              /*needs_rule=*/true}}),
        true},
       Fsdp},
  };
}

}  // namespace weft
