#include "worker/shell/transport/awaited_links.h"

#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

constexpr int64_t kLookInterval = 1'000'000'000;

}  // namespace

AwaitedLinks::Verdict AwaitedLinks::Look(int64_t now) {
  Verdict result;
  if ((table_.wants() == 0 && watch_.next_look() > now) || now - last_look_ < kLookInterval) return result;
  last_look_ = now;
  const std::vector<TransferTable::PeerWants> wants = table_.WantsByPeer();
  std::map<uint64_t, const TransferTable::PeerWants*> by_sender;
  for (const TransferTable::PeerWants& w : wants) {
    const std::optional<uint64_t> sender = table_.SenderOf(w.peer);
    const auto found = sender ? connections_.all().find(*sender) : connections_.all().end();
    if (found != connections_.all().end() && found->second.open) by_sender[*sender] = &w;
  }
  std::vector<LinkWatch::Wanted> wanted;
  wanted.reserve(by_sender.size());
  for (const auto& [sender, w] : by_sender)
    wanted.push_back({sender, options_.bytes_under_way(w->peer, sender)});
  LinkWatch::Verdict verdict = watch_.Look(now, wanted);
  result.ask = std::move(verdict.ask);
  for (const LinkWatch::Wanted& w : wanted) {
    if (watch_.Answers(w.sender)) result.answer.push_back(w.sender);
  }
  for (const uint64_t sender : verdict.silent) Log(DescribeWait(*by_sender.at(sender), now));
  for (const uint64_t sender : verdict.healed) {
    if (const std::optional<PeerId> peer = table_.PeerOf(sender))
      Log(absl::StrCat("the data link to ", table_.label(*peer), " answers again"));
  }
  for (const uint64_t sender : verdict.dead) {
    const TransferTable::PeerWants& w = *by_sender.at(sender);
    NoteLost(table_.label(w.peer));
    result.dead.emplace_back(
        sender,
        absl::StrCat("its data link (", connections_.all().at(sender).host_path, ") has carried nothing for ",
                     options_.watch.timeout_ns / 1'000'000'000, " s; awaited: ", Describe(w.oldest)));
  }
  return result;
}

std::string AwaitedLinks::DescribeWait(const TransferTable::PeerWants& wants, int64_t now) const {
  const uint64_t sender = *table_.SenderOf(wants.peer);
  return absl::StrFormat(
      "waiting for %s%s of %s for %.0f s; its data link (%s) has been silent for %.0f s",
      Describe(wants.oldest), wants.count > 1 ? absl::StrCat(" and ", wants.count - 1, " more") : "",
      table_.label(wants.peer), 1e-9 * static_cast<double>(now - wants.since),
      connections_.all().at(sender).host_path, 1e-9 * static_cast<double>(watch_.SilenceOf(sender)));
}

std::string AwaitedLinks::DescribeSilence(int64_t now) const {
  if (watch_.silent_links() == 0) return "";
  std::vector<std::string> waits;
  for (const TransferTable::PeerWants& w : table_.WantsByPeer()) {
    const std::optional<uint64_t> sender = table_.SenderOf(w.peer);
    if (sender && watch_.SilenceOf(*sender) > 0) waits.push_back(DescribeWait(w, now));
  }
  return absl::StrJoin(waits, "; ");
}

void AwaitedLinks::NoteLost(const std::string& label) {
  if (!lost_.ok()) return;
  lost_ = absl::UnavailableError(absl::StrCat("there is no data link to ", label,
                                              "; a new process in the place of this one has new links"));
}

}  // namespace weft
