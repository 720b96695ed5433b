// Exchanges messages with other processes, each a short header and an optional payload.
//
// It knows nothing of tensors or keys. A message may arrive from a process that this side has no link to.
// Messages of one link may overtake each other (large payloads may take another way than small ones).
//
// UcxMessenger serves processes that trust the network between them, TlsMessenger those that do not;
// open_messenger.h chooses.
//
// Threads: one at a time. The handler is called from Progress, Send, Close and the destructor only; it may
// call Send, not Connect, Disconnect or Close. Ownership: the payload of a Send stays the caller's until
// OnSent; a place to land until OnLanded. Failure: a broken link is reported once (OnLinkFailed) and
// completes all its sends with the cause. No exceptions.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_MESSENGER_H_
#define WEFT_WORKER_SHELL_TRANSPORT_MESSENGER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class Messenger {
 public:
  using LinkId = uint32_t;
  static constexpr size_t kMaxHeaderBytes = 1024;

  class Handler {
   public:
    virtual ~Handler() = default;
    // Takes a message with no payload.
    virtual void OnMessage(absl::string_view header) = 0;
    // Takes a message with a payload: returns where to put it, or nullptr to refuse. OnLanded(token) follows
    // unless refused, maybe before this Progress returns.
    struct Landing {
      void* to = nullptr;
      uint64_t token = 0;
      MemoryPlace place = MemoryPlace::kHost;
    };
    virtual Landing OnPayload(absl::string_view header, size_t bytes) = 0;
    virtual void OnLanded(uint64_t token, const absl::Status& status) = 0;
    virtual void OnSent(uint64_t token, const absl::Status& status) = 0;
    virtual void OnLinkFailed(LinkId link, const absl::Status& cause) = 0;
  };

  virtual ~Messenger() = default;

  // Returns the bytes by which others connect to this messenger.
  virtual const std::string& address() const = 0;
  // Returns the addresses from which this side's TCP connections come, where others must admit them; none
  // where that is not so.
  virtual std::vector<std::string> sources() const { return {}; }
  // Lets processes at these addresses (peer_filter.h) connect, and no others; at first nobody may. Does
  // nothing where `sources` has none.
  virtual absl::Status AdmitOnly(const std::vector<std::string>& /*addresses*/) { return absl::OkStatus(); }

  // Opens a link. FailedPrecondition if no way leads there; InvalidArgument for bytes that are no address.
  virtual absl::StatusOr<LinkId> Connect(absl::string_view address) = 0;
  // Drops the link and its messages under way; silent, but for OnSent.
  virtual void Disconnect(LinkId link) = 0;

  // Sends a header (copied, at most kMaxHeaderBytes) and `bytes` of payload. With a payload OnSent(token)
  // follows, maybe before this returns.
  struct Payload {
    const void* data = nullptr;
    size_t bytes = 0;
    MemoryPlace place = MemoryPlace::kHost;
    uint64_t token = 0;
  };
  virtual void Send(LinkId link, absl::string_view header, const Payload& payload) = 0;

  // Returns the transports that the link uses, as "cma", "tcp", "cuda_ipc", "tls"; none for a closed link.
  virtual std::vector<std::string> Transports(LinkId link) const = 0;
  // Returns true if it can recognize memory of this kind ("host", "cuda", "rocm") and move it.
  virtual bool KnowsMemory(absl::string_view /*kind*/) const { return false; }

  // Returns Unavailable or ResourceExhausted once no later message will arrive here.
  virtual absl::Status Health() const { return absl::OkStatus(); }
  virtual bool hears() const { return true; }
  // Notes that a peer's process on this machine has ended, or is given up.
  virtual void PeerEnded() {}

  // Moves messages; returns how much was done.
  virtual int Progress() = 0;
  // Returns a descriptor that becomes readable when there is something to do, after Arm returned true. Arm
  // returns false when there is something already.
  virtual int event_fd() const = 0;
  virtual bool Arm() = 0;

  // Delivers the messages that were sent, then disconnects everything. `deadline` in nanoseconds of the
  // monotonic clock.
  virtual void Close(int64_t deadline) = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_MESSENGER_H_
