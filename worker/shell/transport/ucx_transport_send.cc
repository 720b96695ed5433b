// Implements the producer's half of the UCX transport: offers that met their wants go in place or as bytes,
// and are held until their consumer has them or has read them.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/transport/offer_message.h"
#include "worker/shell/transport/ucx_transport_class.h"

namespace weft {

void UcxTransport::Offer(PeerId peer, const TensorKey& key, Tensor tensor) {
  if (std::optional<Delivery> due = table_.Offer(peer, key, std::move(tensor))) Deliver(*std::move(due));
}

void UcxTransport::HandleWant(const TransportMessage& message) {
  if (message.again) {
    const HeldOffers::Answer answer = held_.AskedAgain(message.sender, message.key, now_);
    if (answer.again != HeldOffers::Again::kNone) return SendAgain(answer);
  }
  if (auto due = table_.OnWant(message.sender, message.key, message.in_place_ok, message.again))
    Deliver(*std::move(due));
}

// Sends a tensor once more that did not arrive, or gives up the link that has lost it too often.
void UcxTransport::SendAgain(const HeldOffers::Answer& answer) {
  if (answer.again == HeldOffers::Again::kOnItsWay) return;
  const HeldOffer& held = *held_.Find(answer.offer);
  const std::string what = absl::StrCat(Describe(held.key), " (", held.tensor.bytes, " bytes)");
  if (answer.again == HeldOffers::Again::kSend) {
    if (const std::optional<PeerId> peer = table_.PeerOf(held.consumer); options_.log && peer)
      options_.log(
          absl::StrCat("the ", what, " did not arrive at ", table_.label(*peer), "; it is sent again"));
    return SendOffer(answer.offer);
  }
  // This may run inside UCX, so the link is given up a little later.
  connections_.MarkBroken(held.consumer, now_,
                          absl::StrCat("its data link has lost the ", what, " ", held.sent, " times"));
}

void UcxTransport::Deliver(Delivery delivery) {
  ++counters_.tensors_sent;
  counters_.bytes_sent += delivery.tensor.bytes;
  const uint64_t consumer = *table_.SenderOf(delivery.peer);
  PeerConnection& connection = *connections_.Find(consumer);
  if (!connection.used) NoteUse(delivery.peer, &connection);
  const bool host = delivery.tensor.place == MemoryPlace::kHost;
  if (!host && !connection.carries_device) {
    std::fprintf(stderr, "weft: offered %s in device memory to %s, which takes none\n",
                 Describe(delivery.key).c_str(), table_.label(delivery.peer).c_str());
    std::abort();
  }
  HeldOffer offer{consumer, delivery.key, std::move(delivery.tensor)};
  offer.sent_ns = now_;
  offer.in_place = host && delivery.in_place_ok && options_.in_place &&
                   offer.tensor.bytes > options_.inline_bytes &&
                   memory_->Find(offer.tensor.data, offer.tensor.bytes).has_value();
  SendOffer(held_.Add(std::move(offer)));
}

void UcxTransport::SendOffer(uint64_t offer) {
  receipts_.SendAll();  // what a job has read is given back before what it made arrives
  const HeldOffer& held = *held_.Find(offer);
  const PeerConnection& to = *connections_.Find(held.consumer);
  TransportMessage message = OfferMessage(held, offer, MonotonicNow(), *memory_);
  if (held.in_place || message.bytes == 0) return SendMessage(to, &message);
  if (options_.loses && options_.loses(message.type)) return;
  message.sender = sender_;
  char buffer[TransportMessage::kMaxBytes];
  const size_t size = Encode(message, buffer);
  held_.BeginSending(offer);
  messenger_->Send(to.link, absl::string_view(buffer, size),
                   {held.tensor.data, held.tensor.bytes, held.tensor.place, offer});
}

// A send that failed while the link lives did not arrive: the consumer asks again. If the link has failed
// too, it reports that itself.
void UcxTransport::OnSent(uint64_t token, const absl::Status& /*status*/) { held_.EndSending(token); }

void UcxTransport::HandleReleases(const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i)
    counters_.dropped_messages += held_.Release(message.sender, message.offers[i]) ? 0 : 1;
}

void UcxTransport::HandleCopyInstead(const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i) {
    if (HeldOffer* held = held_.FindReadBy(message.sender, message.offers[i])) {
      held->in_place = false;
      held->sent_ns = now_;
      SendOffer(message.offers[i]);
    } else {
      ++counters_.dropped_messages;
    }
  }
}

void UcxTransport::AnnounceFreedSegments() {
  for (const uint64_t id : memory_->TakeFreed()) {
    TransportMessage gone;
    gone.type = Type::kSegmentGone;
    gone.segment.id = id;
    for (const auto& [sender, connection] : connections_.all()) {
      if (connection.process_fd >= 0 && connection.open) SendMessage(sender, &gone);
    }
  }
}

}  // namespace weft
