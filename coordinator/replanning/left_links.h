// Writes the slow links that a run has left as text, for the store, and reads them. Pure.
#ifndef WEFT_COORDINATOR_REPLANNING_LEFT_LINKS_H_
#define WEFT_COORDINATOR_REPLANNING_LEFT_LINKS_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/replanning/measured_links.h"

namespace weft {

// Returns JSON; "" where no link is slow.
std::string LeftLinksText(const RankLinks& left);

// Returns the links of such a text, of a run of so many ranks. DataLoss for another one.
absl::StatusOr<RankLinks> ReadLeftLinks(const std::string& text, int ranks);

}  // namespace weft

#endif  // WEFT_COORDINATOR_REPLANNING_LEFT_LINKS_H_
