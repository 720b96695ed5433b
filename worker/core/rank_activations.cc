#include "worker/core/rank_activations.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace weft {

RankActivations::RankActivations(Rank rank, const Graph& graph, ReadyJobs* ready)
    : rank_(rank), graph_(graph), ready_(*ready), measured_(graph.schedule().stages, false) {}

void RankActivations::Begin() { peak_ = std::max(peak_, ++alive_); }

void RankActivations::End(const Job& job) {
  if (!HasMicrobatch(job.kind)) return;
  const bool leaves_nothing = job.kind == JobKind::kForward && graph_.HasRemoteBackward(job);
  if (job.kind != graph_.final_backward() && !leaves_nothing) return;
  --alive_;
  if (leaves_nothing || !graph_.HasRemoteBackward(job)) ready_.Release(job.stage);
}

std::string RankActivations::Measure(const Job& forward, std::optional<int64_t> activation_bytes) {
  if (forward.kind != JobKind::kForward || !activation_bytes.has_value() || !ready_.tickets().has_value() ||
      measured_[forward.stage]) {
    return "";
  }
  const ActivationMemory& memory = *graph_.terms().memory;
  const int64_t counted = memory.activation_bytes[forward.stage];
  if (*activation_bytes > counted) {
    return absl::StrFormat(
        "%s on rank %d left %d bytes of activations, more than the %d that the memory budget was "
        "planned with; run it without `memory`",
        Describe(forward), rank_, *activation_bytes, counted);
  }
  measured_[forward.stage] = true;
  // The bytes between the halves of a backward have been counted too, and are not in the measure.
  if (!graph_.schedule().split_backward)
    ready_.Measure(forward.stage, memory.BytesOf(forward.stage) - counted + *activation_bytes);
  return "";
}

}  // namespace weft
