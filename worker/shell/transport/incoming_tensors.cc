#include "worker/shell/transport/incoming_tensors.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/transport/in_place_arrival.h"

namespace weft {

IncomingTensors::IncomingTensors(TransferTable& table, PeerConnections& connections,
                                 std::shared_ptr<ReceivePool> host, std::shared_ptr<ReceivePool> device,
                                 Send send)
    : table_(table),
      connections_(connections),
      send_(std::move(send)),
      landings_(std::move(host), std::move(device)),
      receipts_([this](uint64_t producer, TransportMessage* message) {
        const PeerConnection* to = connections_.Find(producer);
        if (to != nullptr && to->open) send_(*to, message);
      }) {}

void IncomingTensors::Want(Nanos now, PeerId peer, const TensorKey& key, Events* events) {
  if (table_.Want(peer, key, now, events)) SendKey(peer, TransportMessage::Type::kWant, key);
}

void IncomingTensors::Cancel(const TensorKey& key) {
  if (const std::optional<PeerId> peer = table_.Cancel(key))
    SendKey(*peer, TransportMessage::Type::kCancel, key);
}

void IncomingTensors::AskAgain(Nanos now, PeerId peer) {
  for (const TensorKey& key : table_.AskAgain(peer, now))
    SendKey(peer, TransportMessage::Type::kWant, key, /*again=*/true);
}

void IncomingTensors::SendKey(PeerId peer, TransportMessage::Type type, const TensorKey& key, bool again) {
  const PeerConnection& to = *connections_.Find(*table_.SenderOf(peer));
  TransportMessage message;
  message.type = type;
  message.key = key;
  message.in_place_ok = to.in_place;
  message.again = again;
  send_(to, &message);
}

// Returns the time on this machine's clock.
Nanos IncomingTensors::MadeAt(Nanos now, const TransportMessage& message) {
  PeerConnection& connection = *connections_.Find(message.sender);
  if (connection.process_fd >= 0 || message.made_ns == 0) return message.made_ns;
  connection.clock.Observe(message.sent_ns, now);
  return connection.clock.ToLocal(message.made_ns);
}

void IncomingTensors::Arrived(PeerId peer, const TensorKey& key, Tensor tensor, bool in_place,
                              Events* events) {
  ++tensors_;
  bytes_ += tensor.bytes;
  if (in_place) bytes_in_place_ += tensor.bytes;
  events->push_back(ArrivedEvent(peer, key, std::move(tensor)));
}

void IncomingTensors::OnInPlace(Nanos now, const TransportMessage& message, Events* events) {
  // It was sent again, and the first has come after all.
  if (receipts_.IsRead({message.sender, message.offer})) return;
  const std::optional<PeerId> peer = table_.PeerOf(message.sender);
  if (!peer || !table_.IsAwaited(*peer, message.key)) {
    ++dropped_;
    receipts_.Owe({message.sender, message.offer});
    return;
  }
  const PeerConnection& connection = *connections_.Find(message.sender);
  absl::StatusOr<std::shared_ptr<PeerMapping>> mapping = absl::PermissionDeniedError("not asked for");
  if (connection.in_place) mapping = segments_.Map(message.sender, connection.pid, message.segment);
  if (!mapping.ok()) {
    TransportMessage instead;
    instead.type = TransportMessage::Type::kCopyInstead;
    instead.offers[0] = message.offer;
    instead.offer_count = 1;
    send_(connection, &instead);
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
                 .made_ns = MadeAt(now, message)},
          /*in_place=*/true, events);
}

void IncomingTensors::OnNotice(Nanos now, const TransportMessage& message, Events* events) {
  const std::optional<PeerId> peer = table_.PeerOf(message.sender);
  receipts_.Owe({message.sender, message.offer});
  if (!peer || message.bytes > 0 || !table_.IsAwaited(*peer, message.key)) {
    ++dropped_;
  } else if (table_.Take(*peer, message.key)) {
    Arrived(*peer, message.key, Tensor{.shape = message.shape, .made_ns = MadeAt(now, message)},
            /*in_place=*/false, events);
  }
}

Messenger::Handler::Landing IncomingTensors::OnPayload(Nanos now, const TransportMessage& message, bool valid,
                                                       const Transport::MemoryToReceive& memory,
                                                       Events* events) {
  const std::optional<PeerId> peer = valid ? table_.PeerOf(message.sender) : std::nullopt;
  if (!peer || !table_.IsAwaited(*peer, message.key)) {
    ++dropped_;
    // Bytes that are on their way already may still fail.
    if (message.type == TransportMessage::Type::kData && !(peer && table_.IsWanted(*peer, message.key)))
      receipts_.Owe({message.sender, message.offer});
    return {};
  }
  const absl::StatusOr<uint64_t> landing = landings_.Begin(*peer, message.key, message.offer, memory,
                                                           Tensor{.shape = message.shape,
                                                                  .bytes = message.bytes,
                                                                  .made_ns = MadeAt(now, message),
                                                                  .place = message.place});
  if (!landing.ok()) {
    const std::string what = absl::StrCat("no memory to receive ", Describe(message.key), " from ",
                                          table_.label(*peer), ": ", landing.status().message());
    table_.FailWant(message.key, absl::Status(landing.status().code(), what), events);
    receipts_.Owe({message.sender, message.offer});
    return {};
  }
  table_.MarkLanding(message.key, now, message.bytes);
  return {landings_.tensor(*landing).data, *landing, message.place};
}

std::optional<uint64_t> IncomingTensors::OnLanded(uint64_t token, const absl::Status& status,
                                                  Events* events) {
  Landings::Landing landed = landings_.End(token);
  const std::optional<uint64_t> producer = table_.SenderOf(landed.peer);
  if (!status.ok()) {
    const std::string what = absl::StrCat("no ", Describe(landed.key), " from ", table_.label(landed.peer),
                                          ": ", status.message());
    table_.LandingFailed(landed.key, absl::UnavailableError(what), events);
    return producer;
  }
  if (producer.has_value()) receipts_.Owe({*producer, landed.offer});
  if (table_.Take(landed.peer, landed.key))
    Arrived(landed.peer, landed.key, std::move(landed.tensor), /*in_place=*/false, events);
  return producer;
}

bool IncomingTensors::CanRead(uint64_t producer, int pid, const SegmentRef& segment) {
  return segments_.Map(producer, pid, segment).ok();
}

void IncomingTensors::Forget(uint64_t producer) {
  segments_.ForgetAll(producer);
  receipts_.Forget(producer);
}

TransportCounters IncomingTensors::WithCounts(TransportCounters counters) const {
  counters.tensors_received += tensors_;
  counters.bytes_received += bytes_;
  counters.bytes_in_place += bytes_in_place_;
  counters.dropped_messages += dropped_;
  return counters;
}

}  // namespace weft
