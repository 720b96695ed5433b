#include "schedules/check/deadlock.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/dispatch/claim_order.h"

namespace weft {
namespace {

// Checks fixed orders. There everything before a forward has ended when its turn comes.
absl::Status CheckOrders(const Graph& graph) {
  const Schedule& s = graph.schedule();
  for (Rank r = 0; r < s.ranks; ++r) {
    std::vector<int> alive(s.stages, 0);
    for (const Job& job : s.order[r]) {
      if (job.kind == graph.final_backward()) --alive[job.stage];
      if (job.kind != JobKind::kForward) continue;
      const std::optional<int> limit = s.limit(r, job.stage);
      if (limit.has_value() && alive[job.stage] >= *limit) {
        return absl::InvalidArgumentError(
            absl::StrFormat("deadlock: %s comes in the order of rank %d while %d activations of its stage "
                            "are alive, which is the limit, and the jobs that would end them come after it",
                            Describe(job), r, alive[job.stage]));
      }
      ++alive[job.stage];
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ProveDeadlockFree(const Graph& graph, std::shared_ptr<const StepTables> tables) {
  const Schedule& s = graph.schedule();
  if (!s.limit) return absl::OkStatus();
  if (graph.replays()) return CheckOrders(graph);
  if (!NeedsClaimOrder(graph)) return absl::OkStatus();
  const auto order = ClaimOrder(graph, std::move(tables));
  if (order.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      order.status().message(),
      "; raise the limit, or remove the order edges that make one micro-batch wait for another"));
}

}  // namespace weft
