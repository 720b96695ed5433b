#include "worker/shell/transport/outgoing_tensors.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/transport/offer_message.h"
#include "worker/shell/transport/peer_paths.h"

namespace weft {

OutgoingTensors::OutgoingTensors(Options options, TransferTable& table, PeerConnections& connections,
                                 MappedMemory& memory, Send send)
    : options_(std::move(options)),
      table_(table),
      connections_(connections),
      memory_(memory),
      send_(std::move(send)) {}

void OutgoingTensors::Offer(Nanos now, PeerId peer, const TensorKey& key, Tensor&& tensor) {
  if (std::optional<Delivery> due = table_.Offer(peer, key, std::move(tensor))) Deliver(now, *std::move(due));
}

void OutgoingTensors::OnWant(Nanos now, const TransportMessage& message) {
  if (message.again) {
    const HeldOffers::Answer answer = held_.AskedAgain(message.sender, message.key, now);
    if (answer.again != HeldOffers::Again::kNone) return SendAgain(now, answer);
  }
  if (auto due = table_.OnWant(message.sender, message.key, message.in_place_ok, message.again))
    Deliver(now, *std::move(due));
}

// Sends a tensor once more that did not arrive, or gives up the link that has lost it too often.
void OutgoingTensors::SendAgain(Nanos now, const HeldOffers::Answer& answer) {
  if (answer.again == HeldOffers::Again::kOnItsWay) return;
  const HeldOffer& held = *held_.Find(answer.offer);
  const std::string what = absl::StrCat(Describe(held.key), " (", held.tensor.bytes, " bytes)");
  if (answer.again == HeldOffers::Again::kSend) {
    if (const std::optional<PeerId> peer = table_.PeerOf(held.consumer))
      Log(absl::StrCat("the ", what, " did not arrive at ", table_.label(*peer), "; it is sent again"));
    return SendOffer(answer.offer);
  }
  // This may run inside UCX, so the link is given up a little later.
  connections_.MarkBroken(held.consumer, now,
                          absl::StrCat("its data link has lost the ", what, " ", held.sent, " times"));
}

void OutgoingTensors::Deliver(Nanos now, Delivery delivery) {
  ++tensors_;
  bytes_ += delivery.tensor.bytes;
  const uint64_t consumer = *table_.SenderOf(delivery.peer);
  PeerConnection& connection = *connections_.Find(consumer);
  if (!std::exchange(connection.used, true)) Log(DescribePaths(table_.label(delivery.peer), connection));
  const bool host = delivery.tensor.place == MemoryPlace::kHost;
  if (!host && !connection.carries_device) {
    std::fprintf(stderr, "weft: offered %s in device memory to %s, which takes none\n",
                 Describe(delivery.key).c_str(), table_.label(delivery.peer).c_str());
    std::abort();
  }
  HeldOffer offer{consumer, delivery.key, std::move(delivery.tensor)};
  offer.sent_ns = now;
  offer.in_place = host && delivery.in_place_ok && options_.in_place &&
                   offer.tensor.bytes > options_.inline_bytes &&
                   memory_.Find(offer.tensor.data, offer.tensor.bytes).has_value();
  SendOffer(held_.Add(std::move(offer)));
}

void OutgoingTensors::SendOffer(uint64_t offer) {
  const HeldOffer& held = *held_.Find(offer);
  const PeerConnection& to = *connections_.Find(held.consumer);
  TransportMessage message = OfferMessage(held, offer, memory_);
  Messenger::Payload payload;
  if (!held.in_place && message.bytes > 0) {
    payload = {held.tensor.data, held.tensor.bytes, held.tensor.place, offer};
    held_.BeginSending(offer);
  }
  send_(to, &message, payload);
}

void OutgoingTensors::OnReleases(const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i)
    dropped_ += held_.Release(message.sender, message.offers[i]) ? 0 : 1;
}

void OutgoingTensors::OnCopyInstead(Nanos now, const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i) {
    if (HeldOffer* held = held_.FindReadBy(message.sender, message.offers[i])) {
      held->in_place = false;
      held->sent_ns = now;
      SendOffer(message.offers[i]);
    } else {
      ++dropped_;
    }
  }
}

void OutgoingTensors::SendOverdue(Nanos now) {
  for (const uint64_t offer : held_.Overdue(now)) {
    if (connections_.Find(held_.Find(offer)->consumer)->open) SendOffer(offer);
  }
}

bool OutgoingTensors::AwaitsReleases() const {
  // A peer that failed or said goodbye will not release any more.
  return table_.offers() > 0 ||
         held_.AnyHeldBy([this](uint64_t consumer) { return connections_.all().at(consumer).open; });
}

TransportCounters OutgoingTensors::WithCounts(TransportCounters counters) const {
  counters.tensors_sent += tensors_;
  counters.bytes_sent += bytes_;
  counters.dropped_messages += dropped_;
  counters.sent_again += held_.sent_again();
  return counters;
}

}  // namespace weft
