#include "worker/shell/transport/admitted_peers.h"

#include "worker/shell/transport/peer_filter.h"

namespace weft {

absl::Status AdmittedPeers::Add(const std::vector<TransportAddress>& peers) {
  bool has_new = false;
  for (const TransportAddress& peer : peers)
    has_new |= addresses_.try_emplace(peer.sender, peer.sources).second;
  return has_new ? SetFilter() : absl::OkStatus();
}

void AdmittedPeers::Remove(uint64_t sender) {
  if (addresses_.erase(sender) > 0) SetFilter().IgnoreError();
}

void AdmittedPeers::KeepOnly(const std::function<bool(uint64_t sender)>& stays) {
  const size_t removed = absl::erase_if(addresses_, [&](const auto& entry) { return !stays(entry.first); });
  if (removed > 0) SetFilter().IgnoreError();
}

absl::Status AdmittedPeers::SetFilter() const {
  std::vector<std::string> all;
  for (const auto& [sender, addresses] : addresses_) {
    const std::vector<std::string> counted = AddressesOfPeer(own_, addresses);
    all.insert(all.end(), counted.begin(), counted.end());
  }
  return filter_(all);
}

}  // namespace weft
