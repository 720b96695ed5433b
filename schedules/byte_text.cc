#include "schedules/byte_text.h"

#include <cmath>

#include "absl/strings/str_format.h"

namespace weft {

std::string FormatBytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit < 5) {
    bytes /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || std::abs(bytes) >= 99.95 ? 0 : 1;
  return absl::StrFormat("%.*f %s", decimals, bytes, kUnits[unit]);
}

}  // namespace weft
