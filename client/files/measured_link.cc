#include "client/files/measured_link.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace weft {

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The medians of each size weigh alike, so that the many transfers of one size do not hide the others.
MeasuredLink LinkOf(const std::vector<DrawnTransfer>& transfers) {
  std::map<double, std::vector<double>> seconds;
  for (const DrawnTransfer& t : transfers) {
    if (t.bytes > 0) seconds[t.bytes].push_back(t.end - t.start);
  }
  MeasuredLink link;
  if (seconds.empty()) return link;
  double mean_bytes = 0, mean_seconds = 0;
  std::vector<std::pair<double, double>> medians;
  for (auto& [bytes, of_size] : seconds) {
    medians.emplace_back(bytes, MedianOf(std::move(of_size)));
    mean_bytes += bytes;
    mean_seconds += medians.back().second;
  }
  mean_bytes /= static_cast<double>(medians.size());
  mean_seconds /= static_cast<double>(medians.size());
  double together = 0, square = 0;
  for (const auto& [bytes, median] : medians) {
    together += (bytes - mean_bytes) * (median - mean_seconds);
    square += (bytes - mean_bytes) * (bytes - mean_bytes);
  }
  const double per_byte = square > 0 ? std::max(0.0, together / square) : 0;
  link.latency = std::max(0.0, mean_seconds - per_byte * mean_bytes);
  if (per_byte > 0) link.bandwidth = 1 / per_byte;
  return link;
}

}  // namespace weft
