// Adapts UCX: one worker that exchanges active messages, each a short header and an optional payload.
//
// It knows nothing of tensors or keys. A message may arrive from a process that this side has no link to.
// Messages of one link may overtake each other (large payloads take another way than small ones).
//
// A payload of device memory always goes by rendezvous, so that its destination is known before a byte comes,
// and this side never reads or writes it on the host. UCX finds out the kind of memory by asking the driver.
//
// Threads: one at a time. The handler is called from Progress, Send and Close only; it may call Send, not
// Connect, Disconnect or Close. Ownership: the payload of a Send stays the caller's until OnSent; a place to
// land until OnLanded. Failure: a broken link is reported once (OnLinkFailed) and completes all its sends and
// landings with the cause. No exceptions, and UCX installs no signal handlers.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_UCX_MESSENGER_H_
#define WEFT_WORKER_SHELL_TRANSPORT_UCX_MESSENGER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class UcxMessenger {
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

  // UCX variables, as {"TLS", "tcp"}. UCX must know the `required` ones; the others may be missing in its
  // build.
  struct Settings {
    std::vector<std::pair<std::string, std::string>> required, wished;
  };

  // Creates a messenger. `handler` outlives it. Unavailable, with the settings, if UCX has no way to
  // communicate.
  static absl::StatusOr<std::unique_ptr<UcxMessenger>> Create(const Settings& settings, Handler* handler);
  ~UcxMessenger();

  const std::string& address() const;
  // Returns the addresses from which this side's TCP connections come; none if it has no TCP.
  std::vector<std::string> sources() const;
  // Lets processes at these addresses (peer_filter.h) connect, and no others; at first nobody may.
  absl::Status AdmitOnly(const std::vector<std::string>& addresses);

  absl::StatusOr<LinkId> Connect(absl::string_view address);
  // Drops the link and its messages under way; silent.
  void Disconnect(LinkId link);

  // Sends a header (copied, at most kMaxHeaderBytes) and `bytes` of payload. With a payload OnSent(token)
  // follows, maybe before this returns.
  struct Payload {
    const void* data = nullptr;
    size_t bytes = 0;
    MemoryPlace place = MemoryPlace::kHost;
    uint64_t token = 0;
  };
  void Send(LinkId link, absl::string_view header, const Payload& payload);

  // Returns the transports that UCX uses for the link, as "cma", "tcp", "cuda_ipc"; none for a closed link.
  std::vector<std::string> Transports(LinkId link) const;
  // Returns true if UCX can recognize memory of this kind ("host", "cuda", "rocm") and move it.
  bool KnowsMemory(absl::string_view kind) const;

  // Returns Unavailable once UCX has given up the socket by which others connect to it, or messages do not
  // arrive here any more (receive_watch.h): no later message will.
  absl::Status Health() const;
  bool hears() const;
  // Notes that a peer's process on this machine has ended.
  void PeerEnded();

  // Moves messages; returns how much was done.
  int Progress();
  int event_fd() const;
  bool Arm();

  // Delivers the messages that were sent, then disconnects everything. `deadline` in nanoseconds of the
  // monotonic clock.
  void Close(int64_t deadline);

 private:
  struct Impl;
  explicit UcxMessenger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_UCX_MESSENGER_H_
