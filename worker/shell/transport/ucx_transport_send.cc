// Implements the producer's half of the UCX transport: offers that met their wants go in place or as bytes,
// and are held until their consumer has them or has read them.
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "worker/shell/transport/ucx_transport_class.h"

namespace weft {

void UcxTransport::Offer(PeerId peer, const TensorKey& key, Tensor tensor) {
  if (std::optional<Delivery> due = table_.Offer(peer, key, std::move(tensor))) Deliver(*std::move(due));
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
  TransportMessage message;
  message.key = delivery.key;
  message.shape = delivery.tensor.shape;
  message.bytes = delivery.tensor.bytes;
  message.made_ns = delivery.tensor.made_ns;
  message.sent_ns = MonotonicNow();
  if (message.bytes == 0) {
    message.type = Type::kData;
    SendMessage(connection, &message);
    return;
  }
  if (host && delivery.in_place_ok && options_.in_place && message.bytes > options_.inline_bytes) {
    if (const auto place = memory_->Find(delivery.tensor.data, message.bytes)) {
      message.type = Type::kInPlace;
      message.segment = place->segment;
      message.offset = place->offset;
      message.offer = held_.Add({consumer, delivery.key, std::move(delivery.tensor), /*sending=*/false});
      SendMessage(connection, &message);
      return;
    }
  }
  SendBytes(connection, held_.Add({consumer, delivery.key, std::move(delivery.tensor), /*sending=*/true}));
}

void UcxTransport::SendBytes(const PeerConnection& to, uint64_t offer) {
  const HeldOffer& held = *held_.Find(offer);
  TransportMessage message;
  message.type = Type::kData;
  message.sender = sender_;
  message.key = held.key;
  message.shape = held.tensor.shape;
  message.bytes = held.tensor.bytes;
  message.place = held.tensor.place;
  message.made_ns = held.tensor.made_ns;
  message.sent_ns = MonotonicNow();
  char buffer[TransportMessage::kMaxBytes];
  const size_t size = Encode(message, buffer);
  messenger_->Send(to.link, absl::string_view(buffer, size),
                   {held.tensor.data, held.tensor.bytes, held.tensor.place, offer});
}

void UcxTransport::OnSent(uint64_t token, const absl::Status& /*status*/) {
  // A send fails with its link only, and the link reports its failure itself.
  held_.Drop(token);
}

void UcxTransport::HandleReleases(const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i) {
    if (held_.FindReadBy(message.sender, message.offers[i]) == nullptr) {
      ++counters_.dropped_messages;
    } else {
      held_.Drop(message.offers[i]);
    }
  }
}

void UcxTransport::HandleCopyInstead(const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i) {
    if (HeldOffer* held = held_.FindReadBy(message.sender, message.offers[i])) {
      held->sending = true;
      SendBytes(*connections_.Find(message.sender), message.offers[i]);
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
