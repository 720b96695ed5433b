// Checks decoded fields: each function returns InvalidArgument with the field's name and its bound. Part of
// proto/wire.
#ifndef WEFT_PROTO_WIRE_CHECK_H_
#define WEFT_PROTO_WIRE_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft::wire {

absl::Status CheckAtMost(absl::string_view field, uint64_t value, uint64_t most);
absl::Status CheckNotNegative(absl::string_view field, int64_t value);
// Requires -1 or a number of steps.
absl::Status CheckStepOrNone(absl::string_view field, int32_t value);
absl::Status CheckBytes(absl::string_view field, const std::string& value, size_t most);
// Requires [a-z0-9-]{1,63}.
absl::Status CheckName(absl::string_view field, const std::string& value);

}  // namespace weft::wire

#define WEFT_WIRE_RETURN_IF_ERROR(expression)                \
  do {                                                       \
    if (absl::Status _s = (expression); !_s.ok()) return _s; \
  } while (false)

#endif  // WEFT_PROTO_WIRE_CHECK_H_
