#include "coordinator/replanning/measured_links.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/typical_value.h"

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

LinkTimes TypicalTimes(const MeasuredTransfers& transfers) {
  std::map<Pair, std::map<int64_t, std::vector<double>>> seconds;
  for (const auto& [direction, of_direction] : transfers.directions()) {
    for (const auto& [key, t] : of_direction)
      seconds[std::minmax(direction.first, direction.second)][t.bytes].push_back(t.end - t.start);
  }
  LinkTimes times;
  for (auto& [pair, sizes] : seconds) {
    for (auto& [bytes, of_size] : sizes) {
      if (of_size.size() >= kFewest) times[pair][bytes] = MedianOf(std::move(of_size));
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

// Returns what went over a link in one direction; nothing if it was not used.
std::vector<Burst> BurstsOver(const MeasuredTransfers& transfers, const Pair& direction) {
  const auto found = transfers.directions().find(direction);
  if (found == transfers.directions().end()) return {};
  std::vector<TimedTransfer> of_direction;
  for (const auto& [key, transfer] : found->second) of_direction.push_back(transfer);
  return BurstsOf(std::move(of_direction));
}

// Compares the links of a window with each other, with earlier ones, and with those that are expected.
class Comparison {
 public:
  Comparison(const MeasuredTransfers& now, const LinkTimes& before, const ExpectedLink& expected)
      : transfers_(now), now_(TypicalTimes(now)), before_(before), expected_(expected) {}

  const LinkTimes& now() const { return now_; }

  // Returns how many times as long as usual a pair's tensors take; nothing if that cannot be told.
  std::optional<double> TimesOfUsual(const Pair& pair) const {
    std::vector<double> ratios;
    bool has_others = false;
    for (const auto& [bytes, seconds] : now_.at(pair)) {
      std::vector<double> others = TimesOfOthers(pair, bytes);
      std::optional<double> usual = KnownTime(before_, pair, bytes);
      if (others.size() >= kFewestOthers) {
        has_others = true;
        const double of_others = MedianOf(std::move(others));
        usual = std::min(usual.value_or(of_others), of_others);
      }
      if (usual.has_value()) ratios.push_back(seconds / *usual);
    }
    std::optional<double> times;
    if (!ratios.empty()) times = MedianOf(std::move(ratios));
    return has_others ? times : std::max(times, TimesOfExpected(pair));
  }

 private:
  std::vector<double> TimesOfOthers(const Pair& pair, int64_t bytes) const {
    std::vector<double> others;
    for (const auto& [other, sizes] : now_) {
      const auto time = other == pair ? std::nullopt : KnownTime(now_, other, bytes);
      if (time.has_value()) others.push_back(*time);
    }
    return others;
  }

  // Tensors that wait for each other are compared together: the link that is expected says nothing of waits.
  std::optional<double> TimesOfExpected(const Pair& pair) const {
    const auto link = expected_ ? expected_(pair.first, pair.second) : std::nullopt;
    if (!link.has_value() || link->SecondsOf(1) <= 0) return std::nullopt;
    std::vector<double> ratios;
    for (const Pair& direction : {pair, Pair{pair.second, pair.first}}) {
      for (const Burst& burst : BurstsOver(transfers_, direction))
        ratios.push_back(burst.seconds / link->SecondsOf(burst.bytes));
    }
    return MedianOf(std::move(ratios));
  }

  const MeasuredTransfers& transfers_;
  const LinkTimes now_;
  const LinkTimes& before_;
  const ExpectedLink& expected_;
};

// Returns the link of two ranks: that of the direction in which their mean bytes take longer. It
// takes no time if there are no transfers.
MeasuredLink LinkOfPair(const MeasuredTransfers& transfers, const Pair& pair) {
  std::vector<MeasuredLink> links;
  double bytes = 0, count = 0;
  for (const Pair& direction : {pair, Pair{pair.second, pair.first}}) {
    const std::vector<Burst> bursts = BurstsOver(transfers, direction);
    if (bursts.empty()) continue;
    for (const Burst& burst : bursts) bytes += burst.bytes;
    count += static_cast<double>(bursts.size());
    links.push_back(LinkOf(bursts));
  }
  const auto slower = std::max_element(links.begin(), links.end(), [&](const auto& a, const auto& b) {
    return a.SecondsOf(bytes / count) < b.SecondsOf(bytes / count);
  });
  return slower == links.end() ? MeasuredLink() : *slower;
}

// Returns a link with the median of the latencies, and that of the times of a byte.
MeasuredLink UsualOf(const std::vector<MeasuredLink>& links) {
  std::vector<double> latencies, per_byte;
  for (const MeasuredLink& link : links) {
    latencies.push_back(link.latency);
    per_byte.push_back(link.bandwidth > 0 ? 1 / link.bandwidth : 0);
  }
  const double of_byte = MedianOf(std::move(per_byte));
  return {MedianOf(std::move(latencies)), of_byte > 0 ? 1 / of_byte : 0};
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
                  const std::vector<double>& speeds, const ExpectedLink& expected) {
  const LinkTimes none;
  const Comparison of_earlier(before, none, expected), of_now(transfers, of_earlier.now(), expected);
  const auto is_fast = [&](Rank rank) {
    return static_cast<size_t>(rank) >= speeds.size() || speeds[rank] >= kFastRank;
  };
  RankLinks links;
  std::vector<MeasuredLink> usual;
  for (const auto& [pair, sizes] : of_now.now()) {
    const bool fast = is_fast(pair.first) && is_fast(pair.second);
    const std::optional<double> times = fast ? of_now.TimesOfUsual(pair) : std::nullopt;
    const MeasuredLink link = LinkOfPair(transfers, pair);
    if (times >= kSlowLink) {
      links.slow.push_back({{pair.first, pair.second, link.bandwidth, link.latency}, *times});
      const auto should_be = expected ? expected(pair.first, pair.second) : std::nullopt;
      if (should_be.has_value()) usual.push_back(*should_be);
    } else {
      usual.push_back(link);
      if (times.has_value()) links.normal.push_back(pair);
    }
  }
  for (const auto& [pair, sizes] : of_earlier.now()) {
    if (of_earlier.TimesOfUsual(pair) < kSlowLink) usual.push_back(LinkOfPair(before, pair));
  }
  links.usual = UsualOf(usual);
  return links;
}

}  // namespace weft
