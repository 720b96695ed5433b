#include "coordinator/core/reduction.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "schedules/sync/protocol.h"

namespace weft {
namespace {

// Returns the obstacle to collectives among the processes' devices; empty if there is none.
std::string ObstacleToCollectives(int ranks, const std::vector<Worker*>& workers) {
  if (static_cast<int>(workers.size()) < ranks)
    return absl::StrCat("some of its ", ranks, " ranks share one of its ", workers.size(), " processes");
  const Hello& first = workers.front()->hello;
  std::map<std::string, const Worker*> by_device;
  for (const Worker* worker : workers) {
    const Hello& hello = worker->hello;
    const std::string device = hello.device.empty() ? "an unnamed device" : hello.device;
    if (hello.reduction_library.empty() || hello.device_id.empty())
      return absl::StrCat(worker->Label(), " computes on ", device, ", which has no collectives");
    if (hello.device != first.device)
      return absl::StrCat(worker->Label(), " computes on ", device, ", ", workers.front()->Label(), " on ",
                          first.device);
    if (hello.reduction_library != first.reduction_library)
      return absl::StrCat(worker->Label(), " has ", hello.reduction_library, ", ", workers.front()->Label(),
                          " has ", first.reduction_library);
    const auto [other, alone] = by_device.emplace(hello.device_id, worker);
    if (!alone)
      return absl::StrCat(other->second->Label(), " and ", worker->Label(), " share the device ",
                          hello.device_id);
  }
  return "";
}

}  // namespace

Reduction ChooseReduction(const RunPlan& plan, const std::vector<Worker*>& workers) {
  if (plan.reduction != ReductionMode::kFast) return {};
  const std::string never = plan.graph.schedule().sync->WhyNotJoint();
  const std::string why =
      plan.fast != nullptr    ? ObstacleToCollectives(plan.ranks(), workers)
      : !plan.unsound.empty() ? absl::StrCat("with collectives the schedule cannot run: ", plan.unsound)
      : !never.empty()        ? never
                              : "no stage has several holders that compute with their own weights";
  if (!why.empty()) return {ReductionMode::kOrdered, absl::StrCat("fast is done as ordered: ", why)};
  return {ReductionMode::kFast, absl::StrCat("fast: the ", workers.front()->hello.device, " devices sum by ",
                                             workers.front()->hello.reduction_library)};
}

}  // namespace weft
