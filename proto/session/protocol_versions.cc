#include "proto/session/protocol_versions.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

absl::Status CheckRange(const char* side, const ProtocolVersions& versions) {
  if (versions.lowest > 0 && versions.lowest <= versions.highest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the ", side, " says that it speaks the protocol versions ",
                                                 versions.lowest, " to ", versions.highest,
                                                 ", which is no range"));
}

}  // namespace

std::string ProtocolVersions::text() const {
  if (lowest == highest) return absl::StrCat("version ", lowest);
  return absl::StrCat("versions ", lowest, " to ", highest);
}

absl::StatusOr<uint32_t> ChooseProtocol(const ProtocolVersions& worker, const ProtocolVersions& coordinator) {
  absl::Status ranges = CheckRange("worker", worker);
  ranges.Update(CheckRange("coordinator", coordinator));
  if (!ranges.ok()) return ranges;
  const uint32_t highest = std::min(worker.highest, coordinator.highest);
  if (highest >= std::max(worker.lowest, coordinator.lowest)) return highest;
  const bool worker_is_older = worker.highest < coordinator.lowest;
  const uint32_t wanted = worker_is_older ? coordinator.lowest : worker.lowest;
  const char* const older = worker_is_older ? "worker" : "coordinator";
  return absl::FailedPreconditionError(
      absl::StrCat("the worker speaks protocol ", worker.text(), ", the coordinator ", coordinator.text(),
                   ", and they have none in common; the ", older,
                   " is of an older release: upgrade it to one that speaks version ", wanted));
}

}  // namespace weft
