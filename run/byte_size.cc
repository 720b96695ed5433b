#include "run/byte_size.h"

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace weft {
namespace {

// Returns the bytes in one of a unit that a number may end in; 0 if there is no such unit.
double UnitBytes(absl::string_view unit) {
  const std::pair<absl::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},       {"KB", 1e3},       {"MB", 1e6},          {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}, {"TiB", 1099511627776.}};
  for (const auto& [name, bytes] : kUnits) {
    if (unit == name) return bytes;
  }
  return 0;
}

}  // namespace

std::optional<double> ParseByteSize(absl::string_view text) {
  size_t digits = text.size();
  while (digits > 0 && absl::ascii_isalpha(text[digits - 1])) --digits;
  double number = 0;
  const double unit = UnitBytes(text.substr(digits));
  if (unit == 0 || !absl::SimpleAtod(text.substr(0, digits), &number) || !std::isfinite(number * unit) ||
      number < 0) {
    return std::nullopt;
  }
  return number * unit;
}

}  // namespace weft
