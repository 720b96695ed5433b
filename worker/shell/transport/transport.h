// Moves tensors between worker processes, receiver-granted: the consumer wants a key, the producer offers it,
// in either order.
//
// There is no paired, ordered send and receive, hence no order to deadlock on. When both the want and the
// offer of a key are known to the producer's transport, it hands the tensor over: in place (the consumer maps
// the producer's memory) where the two processes share memory and the bytes lie in memory of this transport's
// MemorySource, else by a copy into memory of the consumer's MemorySource.
//
// UcxTransport (ucx_transport.h) serves worker processes; worker/shell/run_slot.cc makes it. The loopback
// transport (loopback_transport.h) serves tests. Both match wants and offers by transfer_table.h.
//
// Invariants:
//   1. A key arrives at most once, with the length, shape and place that the producer offered, checked before
//      use.
//   2. Every want whose tensor is offered ends: by an arrival, by Cancel, or by the failure of the peer or of
//      the link to it; the failure names key and peer. Until the tensor is offered a want has no deadline:
//      how long it takes to make is not the transport's to say.
//   3. Offered bytes stay alive and unchanged until the consumer dropped its Tensor (in place) or has
//      acknowledged its copy. So a message that is lost, on a link that lives, is sent again within seconds;
//      a tensor that was sent several times in vain fails the link.
//   4. A message of another epoch than the one set is dropped and counted.
//   5. An arrived tensor says when it was made, on the clock of the machine where it arrived.
//   6. A tensor that was dropped before an offer is given back before that offer's tensor arrives. So what a
//      job has read is free when its result is there, and peaks of memory follow from the order of jobs.
//
// Threads: every method is called by one thread at a time (the worker's driver holds a lock), and where there
// is a device each such thread has called Device::PrepareThread. Only destroying an arrived Tensor may happen
// on any thread, at any time, also after the transport is gone. Ownership: the transport shares
// `tensor.owner` of an offer until it is released. Failure: a dead peer is reported once (PeerFailed), every
// want on it fails with the cause, later wants and offers on it fail at once.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// The number of a worker process within a run, given by the coordinator.
using PeerId = int32_t;

// Nanoseconds of the monotonic clock.
using Nanos = int64_t;

struct TransportEvent {
  enum class Kind { kArrived, kWantFailed, kPeerFailed } kind;
  PeerId peer = -1;
  TensorKey key;        // kArrived, kWantFailed
  Tensor tensor;        // kArrived
  absl::Status status;  // kWantFailed, kPeerFailed
};

struct PeerPath {
  PeerId peer = -1;
  MemoryPlace place = MemoryPlace::kHost;
  std::string path;
};

struct PeerAddress {
  std::string address;
  std::string label;  // as in Transport::Connect
};

struct TransportCounters {
  uint64_t tensors_sent = 0, tensors_received = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t bytes_in_place = 0;  // the part of bytes_received that was not copied
  uint64_t dropped_messages = 0;
  uint64_t asked_again = 0;  // wants that were said again for tensors that were late
  uint64_t sent_again = 0;   // tensors that were sent again because they had not arrived
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Returns the address by which a peer reaches this transport: opaque bytes, handed out by the coordinator.
  virtual const std::string& address() const = 0;
  virtual absl::string_view name() const = 0;  // "ucx", "loopback"
  virtual MemorySource& memory() = 0;

  // Gives host memory for a tensor that arrives as a copy; null where the transport is to take its own, from
  // memory(). What it gives may be dropped on any thread, also after the transport is gone, and before the
  // source that memory() is. An error fails the want.
  using MemoryToReceive =
      std::function<absl::StatusOr<std::shared_ptr<void>>(const TensorKey& key, size_t bytes)>;
  // Sets where copies go; null: into the transport's own memory. Called before anything is wanted, and with
  // null before what `memory` refers to is gone.
  void ReceiveInto(MemoryToReceive memory) { receive_into_ = std::move(memory); }

  // Sets the (run, epoch) whose messages count. Wants and offers of another epoch are forgotten, without
  // events.
  virtual void BeginEpoch(uint64_t run, uint64_t epoch) = 0;

  // Lets these peers connect to this transport; others may be kept away. Connect does so too, for its peer.
  // Called with all peers before any of them connects, it keeps their first attempts from being dropped. It
  // counts until the peer has gone; for a peer that is not connected, until BeginEpoch. InvalidArgument,
  // naming the peer, for a malformed address; then it admits none of them.
  virtual absl::Status Admit(const std::vector<PeerAddress>& /*peers*/) { return absl::OkStatus(); }
  // Names a peer. `label` is for messages: "process 2 (pid 4711 on host a)". Unavailable if it cannot be
  // reached.
  virtual absl::Status Connect(PeerId peer, const std::string& address, const std::string& label) = 0;

  // The consumer's half. A key may be wanted once.
  virtual void Want(PeerId peer, const TensorKey& key) = 0;
  virtual void Cancel(const TensorKey& key) = 0;

  // The producer's half. An empty tensor (0 bytes) is a pure notice.
  virtual void Offer(PeerId peer, const TensorKey& key, Tensor tensor) = 0;

  // Moves messages and appends the events. Returns how many messages and events it handled; 0 means idle.
  virtual int Progress(Nanos now, std::vector<TransportEvent>* events) = 0;

  // Returns a descriptor to block on: it becomes readable when there is something to do, after Arm returned
  // true. Arm returns false when there already is something: call Progress again.
  virtual int event_fd() const = 0;
  virtual bool Arm() = 0;
  // Returns when Progress wants to be called though nothing happens, or INT64_MAX.
  virtual Nanos next_look() const = 0;

  // Returns true if tensors in the device's memory may be offered to the peer; others are brought to host
  // memory first (RankCompute::ToHost). The device has finished an offered tensor: `ready` plays no part
  // here. The tensors arrive in memory of the peer's device.
  virtual bool CarriesDevice(PeerId /*peer*/) const { return false; }
  // Returns how tensors of the device's memory, or of the host's, get to the peer: "in_place", "cuda_ipc",
  // "tcp", "staged" (through host memory), ..; "" if that is not known, as for device memory without a
  // device.
  virtual std::string PathTo(PeerId /*peer*/, MemoryPlace /*place*/) const { return ""; }
  // Returns PathTo for every peer to which a tensor has gone, for each place that this process has.
  virtual std::vector<PeerPath> paths() const { return {}; }

  // Describes the links to peers that owe a tensor and answer no question: a sentence that names each with
  // the tensor awaited longest; "" while all answer.
  virtual std::string DescribeSilence(Nanos /*now*/) const { return ""; }
  virtual int silent_links() const { return 0; }
  // Returns why this transport is of no use to another run: no further peer can reach it, or its link to one
  // is lost for good. OK while all is well.
  virtual absl::Status health() const { return absl::OkStatus(); }

  // Returns the bytes offered and not yet released by their consumers.
  virtual uint64_t bytes_held() const = 0;
  virtual TransportCounters counters() const = 0;

  // Waits until offers are released or `deadline`, then closes all connections. After it only destruction is
  // allowed.
  virtual void Close(Nanos deadline) = 0;

 protected:
  const MemoryToReceive& receive_into() const { return receive_into_; }

 private:
  MemoryToReceive receive_into_;  // may be null
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_H_
