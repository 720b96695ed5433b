#include "schedules/sync/catalogue.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "schedules/nearest.h"
#include "schedules/run_terms.h"
#include "schedules/sync/reduction_mode.h"

namespace weft {

Protocols ProtocolsOf(const RunSchedule& schedule, Sync::Steps steps) {
  const Schedule& scheme = schedule.scheme;
  Protocols protocols = ReducedBy(schedule.terms.reduction, scheme.sync)->Make(scheme, steps);
  return schedule.terms.takes_norm ? WithGlobalNorm(std::move(protocols)) : protocols;
}

std::vector<std::string> SyncNames() { return {"slices", "relay", "width", "migrating"}; }

absl::StatusOr<std::shared_ptr<const Sync>> SyncOfName(const std::string& name, int ranks) {
  if (name == "slices") return SlicedSums();
  if (name == "relay") return Relayed();
  if (name == "width") {
    return ShardedByWidth([ranks](int) {
      std::vector<Rank> all(ranks);
      std::iota(all.begin(), all.end(), 0);
      return all;
    });
  }
  if (name == "migrating") return Migrating(nullptr);
  return absl::NotFoundError(absl::StrCat("'", name, "' is no way to keep weights in agreement",
                                          DidYouMean(name, SyncNames()), " (there are ",
                                          absl::StrJoin(SyncNames(), ", "), ")"));
}

}  // namespace weft
