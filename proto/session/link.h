// Implements the reliable link of a session: messages of one end arrive at the other once and in order, over
// a channel that may lose, double, delay and reorder packets, or break and be resumed.
//
// It is a value, not a connection: packets go in and come out, the time is an argument. Over gRPC, where
// nothing is lost within a stream, it gives resumption: the peer says what it received last and the rest is
// sent again. Under the seeded simulation the same class meets a network that loses packets. So "applied, but
// the reply was lost" is an ordinary case with one piece of code for it.
//
// Send --> [unacknowledged: sent | not yet sent] --Take--> packet ~~~> Receive --> delivered in order
// ^--------- cumulative acknowledgement, on every packet back ------'
//
// Invariants:
//   1. Messages are numbered 1, 2, ..; a packet holds consecutive ones from `first`, and acknowledges all up
//      to `ack`.
//   2. Receive delivers message n exactly once, after n - 1. It holds at most `held_limit` early messages,
//      drops the rest, and they come again.
//   3. A message stays in the send buffer until it is acknowledged.
//   4. A packet of another link (`Packet::link`) changes nothing.
//
// Not thread-safe. `Out` is copied into packets: use a shared_ptr where messages are big. Failure: Send says
// ResourceExhausted when the peer does not acknowledge; Receive says InvalidArgument for an acknowledgement
// of a message that was never sent. Both mean that the session is over.
#ifndef WEFT_PROTO_SESSION_LINK_H_
#define WEFT_PROTO_SESSION_LINK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/session/link_clock.h"

namespace weft {

template <typename Message>
struct Packet {
  uint64_t link = 0;   // number of the session
  uint64_t ack = 0;    // every message up to this one has arrived
  uint64_t first = 0;  // number of messages[0]
  std::vector<Message> messages;
};

template <typename Out, typename In>
class Link {
 public:
  explicit Link(uint64_t link, LinkOptions options = {}) : link_(link), clock_(options), options_(options) {}

  uint64_t link() const { return link_; }

  // Queues a message behind the others for Take. `bytes` is its size for Take's bound.
  absl::Status Send(Out message, size_t bytes = 1) {
    if (unacknowledged_.size() >= options_.unacknowledged_limit) {
      return LinkOverflow(options_.unacknowledged_limit);
    }
    unacknowledged_bytes_ += bytes;
    unacknowledged_.push_back({std::move(message), bytes});
    return absl::OkStatus();
  }

  // Returns the next packet: unsent messages up to `bytes_max` (at least one), or a bare acknowledgement that
  // is due, or nothing.
  std::optional<Packet<Out>> Take(int64_t now, size_t bytes_max = std::numeric_limits<size_t>::max()) {
    if (clock_.ResendDue(now) && !unacknowledged_.empty()) {
      resent_ += sent_;
      sent_ = 0;
      clock_.Resent();
    }
    if (unsent() == 0 && !clock_.AckDue(now)) return std::nullopt;
    Packet<Out> packet{link_, received_, base_ + sent_, {}};
    for (size_t bytes = 0; sent_ < unacknowledged_.size(); ++sent_) {
      const Entry& entry = unacknowledged_[sent_];
      if (!packet.messages.empty() && bytes + entry.bytes > bytes_max) break;
      bytes += entry.bytes;
      packet.messages.push_back(entry.message);
    }
    last_sent_ = std::max(last_sent_, base_ + sent_ - 1);
    clock_.Sent(now, !unacknowledged_.empty());
    return packet;
  }

  // Takes a packet in and appends the messages that are next in order to `delivered`.
  absl::Status Receive(int64_t now, Packet<In> packet, std::vector<In>* delivered) {
    if (packet.link != link_) {
      ++strays_;
      return absl::OkStatus();
    }
    if (absl::Status s = Acknowledge(now, packet.ack); !s.ok()) return s;
    for (size_t i = 0; i < packet.messages.size(); ++i) {
      Accept(packet.first + i, std::move(packet.messages[i]), delivered);
    }
    DeliverHeld(delivered);
    if (!packet.messages.empty()) clock_.Received(now, static_cast<int>(packet.messages.size()));
    return absl::OkStatus();
  }

  // Carries on over a new connection: the peer has everything up to `peer_received`; the rest is sent again
  // at once.
  absl::Status Resume(int64_t now, uint64_t peer_received) {
    if (absl::Status s = Acknowledge(now, peer_received); !s.ok()) return s;
    resent_ += sent_;
    sent_ = 0;
    return absl::OkStatus();
  }

  // Returns the number of the last message that arrived in order.
  uint64_t received() const { return received_; }
  size_t unacknowledged() const { return unacknowledged_.size(); }
  size_t unacknowledged_bytes() const { return unacknowledged_bytes_; }
  size_t unsent() const { return unacknowledged_.size() - sent_; }
  size_t held() const { return held_.size(); }

  // Returns when to call Take even if nothing was sent or received since; INT64_MAX for never.
  int64_t next_deadline() const { return clock_.next_deadline(!unacknowledged_.empty()); }

  // Return totals.
  uint64_t duplicates() const { return duplicates_; }
  uint64_t resent() const { return resent_; }
  uint64_t strays() const { return strays_; }

 private:
  struct Entry {
    Out message;
    size_t bytes;
  };

  absl::Status Acknowledge(int64_t now, uint64_t ack) {
    if (ack < base_) return absl::OkStatus();  // an old packet
    // After going back, messages that were sent before may be acknowledged while they wait to be sent again.
    if (ack > last_sent_) return LinkAckOfUnsent(ack, last_sent_);
    const size_t count = ack - base_ + 1;
    for (size_t i = 0; i < count; ++i) unacknowledged_bytes_ -= unacknowledged_[i].bytes;
    unacknowledged_.erase(unacknowledged_.begin(), unacknowledged_.begin() + count);
    base_ = ack + 1;
    sent_ -= std::min(sent_, count);
    clock_.Progress(now);
    return absl::OkStatus();
  }

  void Accept(uint64_t number, In message, std::vector<In>* delivered) {
    if (number <= received_) {
      ++duplicates_;
    } else if (number == received_ + 1) {
      ++received_;
      delivered->push_back(std::move(message));
    } else if (held_.size() < options_.held_limit) {
      if (!held_.emplace(number, std::move(message)).second) ++duplicates_;
    }
  }

  void DeliverHeld(std::vector<In>* delivered) {
    auto it = held_.begin();
    while (it != held_.end() && it->first <= received_ + 1) {
      if (it->first == received_ + 1) {
        ++received_;
        delivered->push_back(std::move(it->second));
      } else {
        ++duplicates_;
      }
      it = held_.erase(it);
    }
  }

  const uint64_t link_;
  LinkClock clock_;
  const LinkOptions options_;

  std::deque<Entry> unacknowledged_;  // numbers base_, base_ + 1, ..
  size_t unacknowledged_bytes_ = 0;   // size of all unacknowledged messages
  uint64_t base_ = 1;
  size_t sent_ = 0;  // how many of unacknowledged_ have been given out since the last going back
  uint64_t last_sent_ = 0;

  uint64_t received_ = 0;
  std::map<uint64_t, In> held_;  // early messages, all > received_ + 1

  uint64_t duplicates_ = 0, resent_ = 0, strays_ = 0;
};

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_LINK_H_
