// Data parallelism: rank b computes micro-batch b on every stage; the weights are on every rank (ddp), or
// each stage's on one (fsdp).
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
// than ranks some ranks own nothing.
absl::StatusOr<Schedule> Fsdp(const FamilyParameters&, int stages, int microbatches) {
  Schedule s = SizedSchedule("fsdp", stages, microbatches, microbatches);
  s.compute = [](const Job& j) { return j.microbatch; };
  s.weights = [microbatches](const Job& j) { return j.stage % microbatches; };
  s.priority = PriorityByMicrobatch(stages, microbatches, true);
  s.residency = Residency::kSharded;
  return s;
}

}  // namespace

std::vector<FamilyEntry> DataParallelFamilies() {
  return {
      {{"ddp", "data parallel: rank b computes micro-batch b, weights on every rank", {}}, Ddp},
      {{"fsdp", "data parallel, the weights of stage s on rank s mod W alone, fetched for use", {}}, Fsdp},
  };
}

}  // namespace weft
