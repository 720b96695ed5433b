// Keeps one end of a session over gRPC streams: the link, the messages that wait for it, and the conversion,
// without the stream itself.
//
// Both ends use it: the worker's is session_stream.h, the coordinator's coordinator/shell/session_call.h. A
// stream carries one session, so packets are not numbered by link. Not thread-safe.
#ifndef WEFT_PROTO_WIRE_STREAM_END_H_
#define WEFT_PROTO_WIRE_STREAM_END_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/session/link.h"
#include "proto/session/message_batch.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"

namespace weft {

template <typename Out, typename In>
class StreamEnd {
 public:
  void Send(Out message) {
    waiting_bytes_ += BytesOf(message);
    AddToBatch(&waiting_, std::move(message));
  }

  // Fills `wire` with the next packet. Returns false if there is nothing to write now, ResourceExhausted for
  // a message that is larger than the peer takes: gRPC would end the stream, and the peer would not learn
  // why.
  template <typename Wire>
  absl::StatusOr<bool> Next(int64_t now, Wire* wire) {
    for (; !waiting_.empty(); waiting_.pop_front()) {
      const size_t bytes = BytesOf(waiting_.front());
      large_ = large_ || bytes > kPacketBytes;
      absl::Status s = link_.Send(std::make_shared<const Out>(std::move(waiting_.front())), bytes);
      if (!s.ok()) return s;
    }
    waiting_bytes_ = 0;
    std::optional<Packet<std::shared_ptr<const Out>>> packet = link_.Take(now, kPacketBytes);
    if (!packet.has_value()) return false;
    wire::Encode(*packet, wire);
    if (large_) return CheckSize(wire->ByteSizeLong(), MaxBytes(*wire));
    return true;
  }

  template <typename Wire>
  absl::Status Receive(int64_t now, const Wire& wire, std::vector<In>* delivered) {
    // A stream loses nothing, so nothing is held for missing earlier messages.
    if (wire.payloads_size() > 0 && wire.first() > received() + 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", wire.first(), " came, but number ", received() + 1, " is the next"));
    }
    absl::StatusOr<Packet<In>> packet = wire::Decode(link_.link(), wire);
    if (!packet.ok()) return packet.status();
    return link_.Receive(now, *std::move(packet), delivered);
  }

  absl::Status Resume(int64_t now, uint64_t peer_received) { return link_.Resume(now, peer_received); }
  uint64_t received() const { return link_.received(); }
  // Fails when the peer has left more than kMaxBacklogBytes unacknowledged: the session is over.
  absl::Status CheckBacklog() const {
    const size_t bytes = waiting_bytes_ + link_.unacknowledged_bytes();
    if (bytes <= kMaxBacklogBytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "the peer has not taken in ", bytes >> 20, " MiB of messages; the limit is ", kMaxBacklogBytes >> 20,
        " MiB. It does not read: it is stuck, or the network is too slow"));
  }
  // Returns true if everything sent has been acknowledged.
  bool settled() const { return waiting_.empty() && link_.unacknowledged() == 0; }
  int64_t next_deadline() const { return link_.next_deadline(); }

 private:
  static size_t MaxBytes(const v1::WorkerMessage&) { return kMaxWorkerMessageBytes; }
  static size_t MaxBytes(const v1::CoordinatorMessage&) { return kMaxMessageBytes; }
  static absl::StatusOr<bool> CheckSize(size_t bytes, size_t most) {
    if (bytes <= most) return true;
    return absl::ResourceExhaustedError(
        absl::StrCat("a message to the peer has ", bytes, " bytes, but at most ", most,
                     " are allowed; use more processes, with fewer ranks each"));
  }

  std::deque<Out> waiting_;
  size_t waiting_bytes_ = 0;  // at most
  bool large_ = false;        // a message by itself is larger than packets should be
  Link<std::shared_ptr<const Out>, In> link_{0};
};

}  // namespace weft

#endif  // WEFT_PROTO_WIRE_STREAM_END_H_
