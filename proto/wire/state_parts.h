// Reads parts of a run's state from their two columns. Part of proto/wire.
#ifndef WEFT_PROTO_WIRE_STATE_PARTS_H_
#define WEFT_PROTO_WIRE_STATE_PARTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/session/messages.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"

namespace weft::wire {

// Returns InvalidArgument for columns that differ in length, or for numbers that no run has.
template <typename Column>
absl::Status DecodeParts(absl::string_view field, const Column& stages, const Column& numbers,
                         std::vector<StatePart>* parts) {
  if (stages.size() != numbers.size())
    return absl::InvalidArgumentError(absl::StrCat(field, ": columns stage and part differ in length"));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost(absl::StrCat("the number of ", field), stages.size(), kMaxJobs));
  for (int i = 0; i < stages.size(); ++i) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost(absl::StrCat(field, ".stage"), stages[i], kMaxStages - 1));
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost(absl::StrCat(field, ".part"), numbers[i], kMaxRanks - 1));
    parts->push_back({static_cast<int32_t>(stages[i]), static_cast<int32_t>(numbers[i])});
  }
  return absl::OkStatus();
}

}  // namespace weft::wire

#endif  // WEFT_PROTO_WIRE_STATE_PARTS_H_
