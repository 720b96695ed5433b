#include "proto/wire/check.h"

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"

namespace weft::wire {

absl::Status CheckAtMost(absl::string_view field, uint64_t value, uint64_t most) {
  if (value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", but at most ", most, " is allowed"));
}

absl::Status CheckNotNegative(absl::string_view field, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", but must not be negative"));
}

absl::Status CheckStepOrNone(absl::string_view field, int32_t value) {
  if (value >= -1 && value <= kMaxSteps) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", but must be -1 to ", kMaxSteps));
}

absl::Status CheckBytes(absl::string_view field, const std::string& value, size_t most) {
  return CheckAtMost(absl::StrCat("the length of ", field, " in bytes"), value.size(), most);
}

absl::Status CheckName(absl::string_view field, const std::string& value) {
  bool valid = !value.empty() && value.size() <= kMaxNameBytes;
  for (char c : value) valid &= (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " must be 1 to ", kMaxNameBytes, " characters of a-z, 0-9 and '-'"));
}

}  // namespace weft::wire
