// Makes the message by which a producer hands an offer to its consumer.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_OFFER_MESSAGE_H_
#define WEFT_WORKER_SHELL_TRANSPORT_OFFER_MESSAGE_H_

#include <cstdint>

#include "worker/shell/transport/held_offers.h"
#include "worker/shell/transport/mapped_memory.h"
#include "worker/shell/transport/transport_message.h"

namespace weft {

// Returns the message, without its sender and the time of sending. A tensor that is read in place lies in
// `memory`.
inline TransportMessage OfferMessage(const HeldOffer& held, uint64_t offer, const MappedMemory& memory) {
  TransportMessage message;
  message.type = held.in_place ? TransportMessage::Type::kInPlace : TransportMessage::Type::kData;
  message.key = held.key;
  message.shape = held.tensor.shape;
  message.bytes = held.tensor.bytes;
  message.place = held.tensor.place;
  message.made_ns = held.tensor.made_ns;
  message.offer = offer;
  if (held.in_place) {
    const auto place = *memory.Find(held.tensor.data, held.tensor.bytes);
    message.segment = place.segment;
    message.offset = place.offset;
  }
  return message;
}

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_OFFER_MESSAGE_H_
