// Encodes and decodes the messages between two transports.
//
// Everything that arrives is checked here, before anything is done with it: type, lengths, shape against
// bytes, ranges within a segment. A message that does not fit is an InvalidArgument that says why, never a
// crash; so the bytes of a peer are never trusted further than their meaning.
//
// Integers are little-endian and unaligned. The payload of kData travels behind the message, not in it. Pure
// functions.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_MESSAGE_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_MESSAGE_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// A segment of memory that another process of the same machine can map.
struct SegmentRef {
  uint64_t id = 0;     // unique within its process
  uint64_t inode = 0;  // proves that the descriptor still is the same file
  uint64_t bytes = 0;
  int32_t descriptor = -1;  // descriptor in the owner's process
  friend bool operator==(const SegmentRef&, const SegmentRef&) = default;
};

struct TransportMessage {
  enum class Type : uint8_t {
    kWant = 1,         // consumer: send me `key`
    kCancel = 2,       // consumer: no longer
    kInPlace = 3,      // producer: `key` lies at `offset` of `segment`; release `offer` when done
    kData = 4,         // producer: the bytes of `key` follow; release `offer` when they are there
    kRelease = 5,      // consumer: done with `offers`: has read them, or has its copies
    kCopyInstead = 6,  // consumer: cannot read `offers` in place, send the bytes
    kSegmentGone = 7,  // producer: unmap `segment.id`
    kGoodbye = 8,      // closing; not a failure
    kPing = 9,         // does the link still carry messages?
    kPong = 10,        // the answer
  };
  static constexpr size_t kMaxOffers = 64;
  static constexpr size_t kMaxBytes = 1024;  // most bytes of an encoded message

  Type type = Type::kGoodbye;
  uint64_t sender = 0;
  TensorKey key;                              // kWant, kCancel, kInPlace, kData
  bool in_place_ok = false;                   // kWant
  bool again = false;                         // kWant: it was sent before
  TensorShape shape;                          // kInPlace, kData
  uint64_t bytes = 0;                         // kInPlace, kData
  MemoryPlace place = MemoryPlace::kHost;     // kData: memory in which the bytes are, and to which they go
  int64_t made_ns = 0;                        // kInPlace, kData: made_ns of the Tensor, on the sender's clock
  int64_t sent_ns = 0;                        // kInPlace, kData: the same clock
  uint64_t offer = 0;                         // kInPlace, kData
  SegmentRef segment;                         // kInPlace; kSegmentGone: id only
  uint64_t offset = 0;                        // kInPlace
  std::array<uint64_t, kMaxOffers> offers{};  // kRelease, kCopyInstead
  uint32_t offer_count = 0;
};

// Writes at most kMaxBytes to `out`; returns how many.
size_t Encode(const TransportMessage& message, char* out);

// Decodes a message. InvalidArgument, with the reason, for anything that Encode of a valid message cannot
// have made.
absl::Status Decode(absl::string_view bytes, TransportMessage* message);

// Returns Ok if `bytes` is the size of the shape, or is 0 and the shape has no dimensions (a notice).
absl::Status CheckShape(const TensorShape& shape, uint64_t bytes);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_MESSAGE_H_
