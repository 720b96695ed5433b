// Implements the consumer's half of the UCX transport: wants, and arrivals in place or as bytes.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/transport/in_place_arrival.h"
#include "worker/shell/transport/ucx_transport_class.h"

namespace weft {

void UcxTransport::Want(PeerId peer, const TensorKey& key) {
  if (table_.Want(peer, key, now_, &events_)) SendKey(peer, Type::kWant, key);
}

void UcxTransport::Cancel(const TensorKey& key) {
  if (const std::optional<PeerId> peer = table_.Cancel(key)) SendKey(*peer, Type::kCancel, key);
}

// Returns the time on this machine's clock.
Nanos UcxTransport::MadeAt(const TransportMessage& message) {
  PeerConnection& connection = *connections_.Find(message.sender);
  if (connection.process_fd >= 0 || message.made_ns == 0) return message.made_ns;
  connection.clock.Observe(message.sent_ns, now_);
  return connection.clock.ToLocal(message.made_ns);
}

void UcxTransport::Arrived(PeerId peer, const TensorKey& key, Tensor tensor, bool in_place) {
  ++counters_.tensors_received;
  counters_.bytes_received += tensor.bytes;
  if (in_place) counters_.bytes_in_place += tensor.bytes;
  events_.push_back(ArrivedEvent(peer, key, std::move(tensor)));
}

void UcxTransport::HandleInPlace(const TransportMessage& message) {
  // It was sent again, and the first has come after all.
  if (receipts_.IsRead({message.sender, message.offer})) return;
  const std::optional<PeerId> peer = table_.PeerOf(message.sender);
  if (!peer || !table_.IsAwaited(*peer, message.key)) {
    ++counters_.dropped_messages;
    receipts_.Owe({message.sender, message.offer});
    return;
  }
  const PeerConnection& connection = *connections_.Find(message.sender);
  absl::StatusOr<std::shared_ptr<PeerMapping>> mapping = absl::PermissionDeniedError("not asked for");
  if (connection.in_place) mapping = segments_.Map(message.sender, connection.pid, message.segment);
  if (!mapping.ok()) {
    TransportMessage instead;
    instead.type = Type::kCopyInstead;
    instead.offers[0] = message.offer;
    instead.offer_count = 1;
    SendMessage(message.sender, &instead);
    return;
  }
  table_.Take(*peer, message.key);
  receipts_.Read({message.sender, message.offer});
  void* const data = (*mapping)->base() + message.offset;
  auto arrival = std::make_shared<InPlaceArrival>(*std::move(mapping), receipts_.queue(),
                                                  ReleaseQueue::Release{message.sender, message.offer});
  Arrived(*peer, message.key,
          Tensor{.shape = message.shape,
                 .data = data,
                 .bytes = message.bytes,
                 .owner = std::shared_ptr<void>(arrival, data),
                 .made_ns = MadeAt(message)},
          /*in_place=*/true);
}

void UcxTransport::HandleNotice(const TransportMessage& message) {
  const std::optional<PeerId> peer = table_.PeerOf(message.sender);
  receipts_.Owe({message.sender, message.offer});
  if (!peer || message.bytes > 0 || !table_.IsAwaited(*peer, message.key)) {
    ++counters_.dropped_messages;
  } else if (table_.Take(*peer, message.key)) {
    Arrived(*peer, message.key, Tensor{.shape = message.shape, .made_ns = MadeAt(message)},
            /*in_place=*/false);
  }
}

Messenger::Handler::Landing UcxTransport::OnPayload(absl::string_view header, size_t bytes) {
  TransportMessage message;
  std::optional<PeerId> peer;
  if (Decode(header, &message).ok() && message.type == Type::kData && message.bytes == bytes) {
    peer = table_.PeerOf(message.sender);
    links_.Heard(message.sender);
  }
  if (!peer || !table_.IsAwaited(*peer, message.key)) {
    ++counters_.dropped_messages;
    // Bytes that are on their way already may still fail.
    if (message.type == Type::kData && !(peer && table_.IsWanted(*peer, message.key)))
      receipts_.Owe({message.sender, message.offer});
    return {};
  }
  const absl::StatusOr<uint64_t> landing = landings_.Begin(
      *peer, message.key, message.offer, receive_into(),
      Tensor{.shape = message.shape, .bytes = bytes, .made_ns = MadeAt(message), .place = message.place});
  if (!landing.ok()) {
    const std::string what = absl::StrCat("no memory to receive ", Describe(message.key), " from ",
                                          table_.label(*peer), ": ", landing.status().message());
    table_.FailWant(message.key, absl::Status(landing.status().code(), what), &events_);
    return {};
  }
  table_.MarkLanding(message.key, now_, bytes);
  return {landings_.tensor(*landing).data, *landing, message.place};
}

void UcxTransport::OnLanded(uint64_t token, const absl::Status& status) {
  Landings::Landing landed = landings_.End(token);
  if (const std::optional<uint64_t> sender = table_.SenderOf(landed.peer)) links_.Heard(*sender);
  if (!status.ok()) {
    const std::string what = absl::StrCat("no ", Describe(landed.key), " from ", table_.label(landed.peer),
                                          ": ", status.message());
    return table_.LandingFailed(landed.key, absl::UnavailableError(what), &events_);
  }
  if (const std::optional<uint64_t> sender = table_.SenderOf(landed.peer))
    receipts_.Owe({*sender, landed.offer});
  if (!table_.Take(landed.peer, landed.key)) return;
  Arrived(landed.peer, landed.key, std::move(landed.tensor), /*in_place=*/false);
}

}  // namespace weft
