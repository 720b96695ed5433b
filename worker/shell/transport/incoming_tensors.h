// The consumer's half of a transport between processes: asks for tensors, and takes them in place or as
// bytes.
//
// A tensor comes in one of three ways. Its producer names a place in its own memory, which is read there
// until the tensor is dropped. Its bytes come behind a message, into memory of this process. Or it is a
// notice without bytes. Whichever it is, the producer gets a receipt (tensor_receipts.h): for what is here,
// and for what is not wanted. Where a place cannot be read, the bytes are asked for instead.
//
// Invariants:
//   1. A tensor arrives at most once, and only while it is wanted (TransferTable). What comes besides is
//      counted as dropped.
//   2. Every offer that need not come again gets a receipt. Bytes that are on their way already do not count
//      as here: they may still fail.
//   3. Memory into which bytes come stays as it is until the carrier has ended (landings.h).
//
// Threads: one at a time, but arrived tensors may be dropped on any thread. Ownership: borrows the table and
// the connections. Failure: a tensor for which there is no memory fails its want; bytes that do not come,
// though their producer lives, are asked for again a few times before.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_INCOMING_TENSORS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_INCOMING_TENSORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/monotonic_clock.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/transport/landings.h"
#include "worker/shell/transport/mapped_memory.h"
#include "worker/shell/transport/messenger.h"
#include "worker/shell/transport/peer_connections.h"
#include "worker/shell/transport/receive_pool.h"
#include "worker/shell/transport/release_queue.h"
#include "worker/shell/transport/tensor_receipts.h"
#include "worker/shell/transport/transfer_table.h"
#include "worker/shell/transport/transport.h"
#include "worker/shell/transport/transport_message.h"

namespace weft {

class IncomingTensors {
 public:
  using Events = std::vector<TransportEvent>;
  // Sends a message to a peer.
  using Send = std::function<void(const PeerConnection& to, TransportMessage* message)>;

  // `host`, `device`: the memory into which bytes come; `device` may be null (Landings).
  IncomingTensors(TransferTable& table, PeerConnections& connections, std::shared_ptr<ReceivePool> host,
                  std::shared_ptr<ReceivePool> device, Send send);

  void Want(Nanos now, PeerId peer, const TensorKey& key, Events* events);
  void Cancel(const TensorKey& key);
  // Asks the peer once more for what is late. Its link has answered, so nothing waits there.
  void AskAgain(Nanos now, PeerId peer);

  // Take what a producer sends. These require that it is connected, but for OnPayload.
  void OnInPlace(Nanos now, const TransportMessage& message, Events* events);
  void OnNotice(Nanos now, const TransportMessage& message, Events* events);
  // Takes a message with bytes, and returns where they go, or nothing to refuse them. `valid`: it has been
  // decoded, and comes with as many bytes as it says. `memory` may be null (Transport::ReceiveInto).
  Messenger::Handler::Landing OnPayload(Nanos now, const TransportMessage& message, bool valid,
                                        const Transport::MemoryToReceive& memory, Events* events);
  // Takes the end of such bytes. Returns the sender number of their producer, if it is still a peer.
  std::optional<uint64_t> OnLanded(uint64_t token, const absl::Status& status, Events* events);

  // Returns true if this process can map the segment of the producer's process.
  bool CanRead(uint64_t producer, int pid, const SegmentRef& segment);
  // Forget a segment that its producer has freed; all of a producer that has gone.
  void ForgetSegment(uint64_t producer, uint64_t segment) { segments_.Forget(producer, segment); }
  void Forget(uint64_t producer);

  // Sends all receipts that are due.
  void SendReceipts() { receipts_.SendAll(); }
  bool owes_receipts() const { return receipts_.owes(); }
  // Returns the queue of those for tensors that have been dropped.
  ReleaseQueue& releases() const { return *receipts_.queue(); }

  // Returns the bytes that are on their way from the peer.
  uint64_t BytesFrom(PeerId peer) const { return landings_.BytesFrom(peer); }
  // Adds the tensors that have arrived, and the messages that were dropped.
  TransportCounters WithCounts(TransportCounters counters) const;

 private:
  void SendKey(PeerId peer, TransportMessage::Type type, const TensorKey& key, bool again = false);
  Nanos MadeAt(Nanos now, const TransportMessage& message);
  void Arrived(PeerId peer, const TensorKey& key, Tensor tensor, bool in_place, Events* events);

  TransferTable& table_;
  PeerConnections& connections_;
  const Send send_;
  PeerSegments segments_;
  Landings landings_;
  TensorReceipts receipts_;
  uint64_t tensors_ = 0, bytes_ = 0, bytes_in_place_ = 0, dropped_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_INCOMING_TENSORS_H_
