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

// Each size has one point, its median, so that the many transfers of one size do not hide the others. An
// error counts relative to the time: the time of a large tensor varies by more than a latency, and would
// decide it. Neither figure can be below zero: where one would be, the other alone is fitted.
MeasuredLink LinkOf(const std::vector<DrawnTransfer>& transfers) {
  std::map<double, std::vector<double>> seconds;
  for (const DrawnTransfer& t : transfers) {
    if (t.bytes > 0 && t.end > t.start) seconds[t.bytes].push_back(t.end - t.start);
  }
  struct Point {
    double bytes, seconds, weight;
  };
  std::vector<Point> points;
  double weight = 0, mean_bytes = 0, mean_seconds = 0, bytes_squared = 0, bytes_seconds = 0;
  for (auto& [bytes, of_size] : seconds) {
    const double median = MedianOf(std::move(of_size));
    const Point point = {bytes, median, 1 / (median * median)};
    weight += point.weight;
    mean_bytes += point.weight * point.bytes;
    mean_seconds += point.weight * point.seconds;
    bytes_squared += point.weight * point.bytes * point.bytes;
    bytes_seconds += point.weight * point.bytes * point.seconds;
    points.push_back(point);
  }
  MeasuredLink link;
  if (points.empty()) return link;
  mean_bytes /= weight;
  mean_seconds /= weight;
  double together = 0, square = 0;
  for (const Point& p : points) {
    together += p.weight * (p.bytes - mean_bytes) * (p.seconds - mean_seconds);
    square += p.weight * (p.bytes - mean_bytes) * (p.bytes - mean_bytes);
  }
  double per_byte = square > 0 ? std::max(0.0, together / square) : 0;
  link.latency = mean_seconds - per_byte * mean_bytes;
  if (link.latency < 0) {
    link.latency = 0;
    per_byte = bytes_seconds / bytes_squared;
  }
  if (per_byte > 0) link.bandwidth = 1 / per_byte;
  return link;
}

}  // namespace weft
