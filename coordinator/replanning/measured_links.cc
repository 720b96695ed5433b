#include "coordinator/replanning/measured_links.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace weft {
namespace {

constexpr double kSlowLink = 3;      // times as long as usual
constexpr double kFastRank = 0.75;   // of the fastest rank's speed
constexpr size_t kFewest = 3;        // transfers of a size that tell a time
constexpr size_t kFewestOthers = 2;  // links that tell what is usual
constexpr size_t kMostTransfers = 1024;
constexpr size_t kMostDirections = 512;

using Pair = std::pair<Rank, Rank>;                           // the lower rank first
using LinkTimes = std::map<Pair, std::map<int64_t, double>>;  // typical seconds by bytes

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

LinkTimes TypicalTimes(const MeasuredTransfers& transfers) {
  std::map<Pair, std::map<int64_t, std::vector<double>>> seconds;
  for (const auto& [direction, of_direction] : transfers.directions()) {
    for (const auto& [key, t] : of_direction)
      seconds[std::minmax(direction.first, direction.second)][t.bytes].push_back(t.end - t.start);
  }
  LinkTimes times;
  for (auto& [pair, sizes] : seconds) {
    for (auto& [bytes, of_size] : sizes) {
      if (of_size.size() >= kFewest) times[pair][bytes] = Median(std::move(of_size));
    }
  }
  return times;
}

std::optional<double> KnownTime(const LinkTimes& times, const Pair& pair, int64_t bytes) {
  const auto of_pair = times.find(pair);
  if (of_pair == times.end()) return std::nullopt;
  const auto of_size = of_pair->second.find(bytes);
  if (of_size == of_pair->second.end()) return std::nullopt;
  return of_size->second;
}

// Returns the usual time of a tensor between the two ranks: as before, or as for most of the others,
// whichever is shorter.
std::optional<double> UsualTime(const LinkTimes& now, const LinkTimes& before, const Pair& pair,
                                int64_t bytes) {
  const std::optional<double> earlier = KnownTime(before, pair, bytes);
  std::vector<double> others;
  for (const auto& [other, sizes] : now) {
    const auto time = other == pair ? std::nullopt : KnownTime(now, other, bytes);
    if (time.has_value()) others.push_back(*time);
  }
  if (others.size() < kFewestOthers) return earlier;
  const double of_others = Median(std::move(others));
  return earlier.has_value() ? std::min(*earlier, of_others) : of_others;
}

// Returns how many times as long as usual a pair's tensors take; nothing if that cannot be told.
std::optional<double> TimesOfUsual(const LinkTimes& now, const LinkTimes& before, const Pair& pair) {
  std::vector<double> ratios;
  for (const auto& [bytes, seconds] : now.at(pair)) {
    const auto usual = UsualTime(now, before, pair, bytes);
    if (usual.has_value()) ratios.push_back(seconds / *usual);
  }
  if (ratios.empty()) return std::nullopt;
  return Median(std::move(ratios));
}

// Returns the bytes a second of transfers that may overlap.
double BandwidthOf(const std::map<TransferKey, TimedTransfer>& of_direction) {
  std::vector<TimedTransfer> transfers;
  transfers.reserve(of_direction.size());
  for (const auto& [key, transfer] : of_direction) transfers.push_back(transfer);
  std::sort(transfers.begin(), transfers.end(),
            [](const TimedTransfer& a, const TimedTransfer& b) { return a.start < b.start; });
  double bytes = 0, busy = 0, until = 0;
  for (const TimedTransfer& t : transfers) {
    const double from = bytes > 0 ? std::max(until, t.start) : t.start;
    until = bytes > 0 ? std::max(until, t.end) : t.end;
    busy += std::max(0.0, t.end - from);
    bytes += static_cast<double>(t.bytes);
  }
  return busy > 0 ? bytes / busy : 0;
}

// Returns the lower bandwidth of both directions; 0 if there are no transfers.
double BandwidthOf(const MeasuredTransfers& transfers, const Pair& pair) {
  double least = 0;
  for (const Pair& direction : {pair, Pair{pair.second, pair.first}}) {
    const auto found = transfers.directions().find(direction);
    if (found == transfers.directions().end()) continue;
    const double bandwidth = BandwidthOf(found->second);
    if (least == 0 || bandwidth < least) least = bandwidth;
  }
  return least;
}

}  // namespace

void MeasuredTransfers::Add(Rank from, Rank to, const TransferKey& key, const TimedTransfer& transfer) {
  if (from == to || transfer.bytes <= 0 || transfer.end <= transfer.start) return;
  const Direction direction{from, to};
  if (directions_.size() >= kMostDirections && !directions_.contains(direction)) return;
  std::map<TransferKey, TimedTransfer>& of_direction = directions_[direction];
  if (of_direction.size() < kMostTransfers) of_direction.try_emplace(key, transfer);
}

void MeasuredTransfers::Add(const MeasuredTransfers& others) {
  for (const auto& [direction, of_direction] : others.directions_) {
    for (const auto& [key, transfer] : of_direction) Add(direction.first, direction.second, key, transfer);
  }
}

RankLinks LinksOf(const MeasuredTransfers& transfers, const MeasuredTransfers& before,
                  const std::vector<double>& speeds) {
  const LinkTimes now = TypicalTimes(transfers), earlier = TypicalTimes(before);
  const auto is_fast = [&](Rank rank) {
    return static_cast<size_t>(rank) >= speeds.size() || speeds[rank] >= kFastRank;
  };
  RankLinks links;
  std::vector<double> usual;
  for (const auto& [pair, sizes] : now) {
    const bool fast = is_fast(pair.first) && is_fast(pair.second);
    const std::optional<double> times = fast ? TimesOfUsual(now, earlier, pair) : std::nullopt;
    const double bandwidth = BandwidthOf(transfers, pair);
    if (times >= kSlowLink) {
      links.slow.push_back({{pair.first, pair.second, bandwidth, 0}, *times});
    } else {
      usual.push_back(bandwidth);
      if (times.has_value()) links.normal.push_back(pair);
    }
  }
  for (const auto& [pair, sizes] : earlier) usual.push_back(BandwidthOf(before, pair));
  if (!usual.empty()) links.bandwidth = Median(std::move(usual));
  return links;
}

}  // namespace weft
