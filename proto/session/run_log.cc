#include "proto/session/run_log.h"

#include <algorithm>
#include <utility>

namespace weft {

bool Concerns(const RunLogLine& line, Rank rank) {
  return rank < 0 || line.process < 0 ||
         std::find(line.ranks.begin(), line.ranks.end(), rank) != line.ranks.end();
}

std::string RunLogText(const RunLogLine& line) {
  return EventLine(line.entry.unix_ns / 1'000'000, line.entry.severity, line.writer, line.entry.text);
}

const RunLogLine& RunLog::Add(RunLogLine line) {
  line.number = ++last_;
  bytes_ += line.entry.text.size();
  if (line.process < 0) {
    if (line.routine && !events_.empty() && events_.back().routine) events_.pop_back();
    events_.push_back(line);
    if (events_.size() > kMostEvents) events_.pop_front();
  }
  lines_.push_back(std::move(line));
  while (lines_.size() > 1 && (lines_.size() > kMostLines || bytes_ > kMostBytes)) {
    bytes_ -= lines_.front().entry.text.size();
    lines_.pop_front();
  }
  return lines_.back();
}

RunLogPart RunLog::After(uint64_t number, Rank rank) const {
  RunLogPart part;
  part.last = std::max(number, last_);
  if (lines_.empty() || number >= last_) return part;
  const uint64_t first = lines_.front().number;
  part.dropped = first > number + 1 ? first - number - 1 : 0;
  size_t bytes = 0;
  for (size_t i = number + 1 > first ? number + 1 - first : 0; i < lines_.size(); ++i) {
    const RunLogLine& line = lines_[i];
    if (!Concerns(line, rank)) continue;
    bytes += line.entry.text.size() + 100;
    if (bytes > kPartBytes && !part.lines.empty()) {
      part.last = line.number - 1;
      part.more = true;
      return part;
    }
    part.lines.push_back(line);
  }
  return part;
}

RunLogPart RunLog::Events() const {
  RunLogPart part;
  part.lines.assign(events_.begin(), events_.end());
  part.last = last_;
  return part;
}

bool LogRate::Admit(int64_t now_ns) {
  tokens_ = std::min<double>(kBurst, tokens_ + kPerSecond * 1e-9 * static_cast<double>(now_ns - at_ns_));
  at_ns_ = now_ns;
  if (tokens_ < 1) {
    ++refused_;
    return false;
  }
  tokens_ -= 1;
  return true;
}

int64_t LogRate::TakeRefused() { return std::exchange(refused_, 0); }

}  // namespace weft
