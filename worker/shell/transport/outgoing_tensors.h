// The producer's half of a transport between processes: sends tensors that are offered and wanted, and keeps
// them until their consumers have them or have read them.
//
// A tensor of the host that is not small, and lies in memory that processes of this machine can map, goes in
// place: its message names the place. Any other goes as bytes. held_offers.h keeps what was sent. A consumer
// says that it is done with an offer, that it cannot read it in place, or that it still waits for it; then it
// is sent again.
//
// Invariants:
//   1. A tensor is kept until its consumer is done with it or gone, and the carrier no longer uses its bytes.
//   2. A tensor of a device's memory goes only to a peer that takes such; else the caller has broken its
//      promise, and the process ends.
//   3. An offer that was sent too often in vain gives the link up (PeerConnections::MarkBroken).
//
// Threads: one at a time. Ownership: borrows the table, the connections and the memory; shares the offered
// tensors. Failure: none of its own.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_OUTGOING_TENSORS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_OUTGOING_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/monotonic_clock.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/transport/held_offers.h"
#include "worker/shell/transport/mapped_memory.h"
#include "worker/shell/transport/messenger.h"
#include "worker/shell/transport/peer_connections.h"
#include "worker/shell/transport/transfer_table.h"
#include "worker/shell/transport/transport.h"
#include "worker/shell/transport/transport_message.h"

namespace weft {

class OutgoingTensors {
 public:
  struct Options {
    bool in_place = true;                              // false: always as bytes
    size_t inline_bytes = 0;                           // most bytes of a tensor that does not go in place
    std::function<void(const std::string& line)> log;  // may be null
  };
  // Sends the message of an offer, whose sending time is still to be set. With a payload OnSent follows,
  // maybe before this returns.
  using Send = std::function<void(const PeerConnection& to, TransportMessage* message,
                                  const Messenger::Payload& payload)>;

  OutgoingTensors(Options options, TransferTable& table, PeerConnections& connections, MappedMemory& memory,
                  Send send);

  void Offer(Nanos now, PeerId peer, const TensorKey& key, Tensor&& tensor);

  // Take what a consumer says; any process may.
  void OnWant(Nanos now, const TransportMessage& message);
  void OnCancel(const TransportMessage& message) { table_.OnCancel(message.sender, message.key); }
  void OnReleases(const TransportMessage& message);
  void OnCopyInstead(Nanos now, const TransportMessage& message);
  // Takes the end of a sending. One that failed while the link lives did not arrive: the consumer asks again.
  // If the link has failed too, it reports that itself.
  void OnSent(uint64_t token) { held_.EndSending(token); }

  // Sends again what no open peer has acknowledged or asked for in a long time (HeldOffers::Overdue).
  void SendOverdue(Nanos now);
  void BeginEpoch(uint64_t run, uint64_t epoch) { held_.BeginEpoch(run, epoch); }
  // Releases the offers of a consumer that has gone.
  void Forget(uint64_t consumer) { held_.ReleaseAllOf(consumer); }

  // Returns true if there are offers that somebody may still want, or release.
  bool AwaitsReleases() const;
  uint64_t bytes_held() const { return table_.offered_bytes() + held_.bytes(); }
  uint64_t BytesBeingSentTo(uint64_t consumer) const { return held_.BytesBeingSentTo(consumer); }
  // Adds the tensors that were sent, and the messages that were dropped.
  TransportCounters WithCounts(TransportCounters counters) const;

 private:
  void Deliver(Nanos now, Delivery delivery);
  void SendOffer(uint64_t offer);
  void SendAgain(Nanos now, const HeldOffers::Answer& answer);
  void Log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  const Options options_;
  TransferTable& table_;
  PeerConnections& connections_;
  MappedMemory& memory_;
  const Send send_;
  HeldOffers held_;
  uint64_t tensors_ = 0, bytes_ = 0, dropped_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_OUTGOING_TENSORS_H_
