// Data parallelism: rank b computes micro-batch b on every stage; the weights are on every rank (ddp), or
// each stage's on one (fsdp).
#include <numeric>

#include "absl/strings/str_format.h"
#include "schedules/families/family.h"

namespace weft {
namespace {

absl::StatusOr<Schedule> Ddp(const FamilyParameters&, int stages, int microbatches) {
  Schedule s = SizedSchedule("ddp", stages, microbatches, microbatches);
  s.compute = s.weights = [](const Job& j) { return j.microbatch; };
  s.priority = PriorityByMicrobatch(stages, microbatches, true);
  s.residency = Residency::kReplicated;
  return s;
}

// Stage by stage: every rank but the owner fetches a stage's weights for its forward and again for its
// backward, and sends its gradient to the owner, which alone keeps the optimizer's state. With fewer stages
// than ranks some ranks own nothing. By width: every rank owns a slice of every stage, gathers the others'
// for each forward and backward, and scatters its gradient to them.
absl::StatusOr<Schedule> Fsdp(const FamilyParameters& parameters, int stages, int microbatches) {
  const auto it = parameters.find("shard");
  const std::string shard = it == parameters.end() ? "stage" : it->second;
  if (shard != "stage" && shard != "width") {
    return absl::InvalidArgumentError(
        absl::StrFormat("fsdp: shard is '%s'; it must be stage or width", shard));
  }
  Schedule s =
      SizedSchedule(shard == "width" ? "fsdp,shard=width" : "fsdp", stages, microbatches, microbatches);
  s.compute = [](const Job& j) { return j.microbatch; };
  s.weights = [microbatches](const Job& j) { return j.stage % microbatches; };
  if (shard == "width") {
    s.weights = s.compute;
    s.shards = [microbatches](int) {
      std::vector<Rank> all(microbatches);
      std::iota(all.begin(), all.end(), 0);
      return all;
    };
  }
  s.priority = PriorityByMicrobatch(stages, microbatches, true);
  s.residency = Residency::kSharded;
  return s;
}

}  // namespace

std::vector<FamilyEntry> DataParallelFamilies() {
  return {
      {{"ddp", "data parallel: rank b computes micro-batch b, weights on every rank", {}, true}, Ddp},
      {{"fsdp",
        "data parallel, the weights of stage s on rank s mod W alone, fetched for use",
        {{"shard", "stage (default), or width: a slice of every stage on every rank", {"stage", "width"}}},
        true},
       Fsdp},
  };
}

}  // namespace weft
