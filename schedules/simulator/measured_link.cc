#include "schedules/simulator/measured_link.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "base/typical_value.h"

namespace weft {
namespace {

constexpr size_t kFewest = 3;   // bursts of a size that tell a time, where there is a size with so many
constexpr double kOneSize = 2;  // factor between sizes, below which they tell no latency

// Returns a burst of each size, with the median of their times: time that other programs take of a core does
// not count, and the many transfers of one size do not hide the others.
std::vector<Burst> TypicalBursts(const std::vector<Burst>& bursts) {
  std::map<double, std::vector<double>> seconds;
  size_t most = 0;
  for (const Burst& burst : bursts) {
    std::vector<double>& of_size = seconds[burst.bytes];
    of_size.push_back(burst.seconds);
    most = std::max(most, of_size.size());
  }
  std::vector<Burst> typical;
  for (auto& [bytes, of_size] : seconds) {
    if (of_size.size() >= std::min(most, kFewest)) typical.push_back({bytes, MedianOf(std::move(of_size))});
  }
  return typical;
}

}  // namespace

std::vector<Burst> BurstsOf(std::vector<TimedTransfer> of_direction) {
  std::erase_if(of_direction, [](const TimedTransfer& t) { return t.bytes <= 0 || t.end <= t.start; });
  std::sort(of_direction.begin(), of_direction.end(),
            [](const TimedTransfer& a, const TimedTransfer& b) { return a.start < b.start; });
  std::vector<Burst> bursts;
  double start = 0, end = 0;  // of the last burst
  for (const TimedTransfer& t : of_direction) {
    if (bursts.empty() || t.start >= end) {
      bursts.emplace_back();
      start = t.start;
      end = t.end;
    }
    end = std::max(end, t.end);
    bursts.back().bytes += static_cast<double>(t.bytes);
    bursts.back().seconds = end - start;
  }
  return bursts;
}

// Fits a line. An error counts relative to the time: the time of a large tensor varies by more than a
// latency, and would decide it. Neither figure can be below zero: where one would be, the other alone is
// fitted.
MeasuredLink LinkOf(const std::vector<Burst>& bursts) {
  const std::vector<Burst> points = TypicalBursts(bursts);
  MeasuredLink link;
  if (points.empty()) return link;
  double weights = 0, mean_bytes = 0, mean_seconds = 0, bytes_squared = 0, bytes_seconds = 0;
  for (const Burst& p : points) {
    const double weight = 1 / (p.seconds * p.seconds);
    weights += weight;
    mean_bytes += weight * p.bytes;
    mean_seconds += weight * p.seconds;
    bytes_squared += weight * p.bytes * p.bytes;
    bytes_seconds += weight * p.bytes * p.seconds;
  }
  mean_bytes /= weights;
  mean_seconds /= weights;
  double together = 0, square = 0;
  for (const Burst& p : points) {
    const double weight = 1 / (p.seconds * p.seconds);
    together += weight * (p.bytes - mean_bytes) * (p.seconds - mean_seconds);
    square += weight * (p.bytes - mean_bytes) * (p.bytes - mean_bytes);
  }
  const bool several = points.back().bytes >= kOneSize * points.front().bytes;
  double per_byte = several ? std::max(0.0, together / square) : 0;
  link.latency = mean_seconds - per_byte * mean_bytes;
  if (!several || link.latency < 0) {
    link.latency = 0;
    per_byte = bytes_seconds / bytes_squared;
  }
  if (per_byte > 0) link.bandwidth = 1 / per_byte;
  return link;
}

}  // namespace weft
