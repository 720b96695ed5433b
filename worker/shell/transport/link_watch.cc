#include "worker/shell/transport/link_watch.h"

#include <algorithm>
#include <limits>

namespace weft {
namespace {

int64_t TimeFor(uint64_t bytes, int64_t rate) {
  return static_cast<int64_t>(static_cast<double>(bytes) / static_cast<double>(rate) * 1e9);
}

}  // namespace

void LinkWatch::Heard(uint64_t sender) {
  const auto found = links_.find(sender);
  if (found != links_.end()) found->second.heard = true;
}

LinkWatch::Verdict LinkWatch::Look(int64_t now, const std::vector<Wanted>& wanted) {
  Verdict verdict;
  const int64_t passed = std::clamp<int64_t>(now - last_look_, 0, 2 * options_.ask_ns);
  last_look_ = now;
  for (auto& [sender, link] : links_) link.wanted = false;
  for (const Wanted& w : wanted) {
    const auto [entry, is_new] = links_.try_emplace(w.sender);
    Link& link = entry->second;
    link.wanted = true;
    if (link.heard) {
      if (link.silent) verdict.healed.push_back(w.sender);
      // Silence counts from the question on; the time between the message and this look is not counted.
      link = Link{.heard = false, .wanted = true};
      if (is_new) continue;
    } else if (link.asked_ns != 0) {
      link.silence_ns += passed;
    }
    const bool due = link.asked_ns == 0 || now - link.asked_ns >= options_.ask_ns;
    if (link.silence_ns >= options_.timeout_ns + TimeFor(w.bytes_under_way, options_.worst_rate)) {
      verdict.dead.push_back(w.sender);
      continue;
    }
    if (!link.silent &&
        link.silence_ns >= options_.notice_ns + TimeFor(w.bytes_under_way, options_.notice_rate)) {
      link.silent = true;
      verdict.silent.push_back(w.sender);
    }
    if (!due) continue;
    link.asked_ns = now;
    verdict.ask.push_back(w.sender);
  }
  for (auto it = links_.begin(); it != links_.end();) {
    if (it->second.wanted) {
      ++it;
      continue;
    }
    if (it->second.silent) verdict.healed.push_back(it->first);
    it = links_.erase(it);
  }
  return verdict;
}

bool LinkWatch::Answers(uint64_t sender) const {
  const auto found = links_.find(sender);
  return found != links_.end() && found->second.silence_ns == 0;
}

int64_t LinkWatch::next_look() const {
  return links_.empty() ? std::numeric_limits<int64_t>::max() : last_look_ + options_.ask_ns;
}

int64_t LinkWatch::SilenceOf(uint64_t sender) const {
  const auto found = links_.find(sender);
  return found == links_.end() || !found->second.silent ? 0 : found->second.silence_ns;
}

int LinkWatch::silent_links() const {
  return static_cast<int>(
      std::count_if(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.silent; }));
}

}  // namespace weft
