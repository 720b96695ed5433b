// Sends messages to one peer over a TLS connection that this side opens: connects, makes the handshake,
// checks who the peer is, then writes frames (message_frame.h) as fast as the socket takes them.
//
// Small messages are gathered into one record of TLS; a large payload is written from where it lies. Only the
// end of the connection comes back on it; it shows that a peer is lost.
//
// Not thread-safe. It owns the socket. Payloads stay the caller's until they are in `sent`. Failure: once
// failure() is not OK, every message that was or will be given to it is in `sent` with that cause.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TLS_SENDER_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TLS_SENDER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/certificates/tls_endpoint.h"
#include "worker/shell/transport/messenger.h"

namespace weft {

// Returns true if the peer with these URIs in its certificate is trusted.
using TrustsPeer = std::function<bool(const std::vector<std::string>& uris)>;

// A payload that was sent or will never be.
struct SentPayload {
  uint64_t token = 0;
  absl::Status status;
};

class TlsSender {
 public:
  // Takes a socket that does not block and has begun to connect. `trusts` and `sent` outlive the sender.
  TlsSender(int fd, std::unique_ptr<TlsConnection> tls, const TrustsPeer* trusts,
            std::vector<SentPayload>* sent);
  ~TlsSender();
  TlsSender(const TlsSender&) = delete;
  TlsSender& operator=(const TlsSender&) = delete;

  void Send(absl::string_view header, const Messenger::Payload& payload);
  // Goes on with what waits, until the socket takes no more or about `budget` bytes are written. Returns how
  // much was done.
  size_t Progress(size_t budget);
  // Ends the connection; silent once it has failed.
  void Fail(const absl::Status& cause);

  int fd() const { return fd_; }
  const absl::Status& failure() const { return failure_; }
  // Returns true while messages wait.
  bool busy() const {
    return bulk_.bytes > 0 || staged_at_ < staged_.size() || !waiting_.empty() || tls_->wants_write();
  }
  // Returns true if it waits until the socket can be written to.
  bool blocked() const {
    return state_ == State::kConnecting || (state_ != State::kOver && tls_->wants_write());
  }

 private:
  enum class State { kConnecting, kHandshake, kOpen, kOver };
  struct Message {
    std::string frame;  // lengths and header
    Messenger::Payload payload;
  };

  bool Open();
  void CheckConnected();
  void CheckPeer();
  void NoticeEnd();
  void Stage();
  size_t WriteStaged();
  size_t WriteBulk();
  // Takes an answer of the connection: returns the bytes that it moved.
  size_t Take(ssize_t moved);

  const int fd_;
  const std::unique_ptr<TlsConnection> tls_;
  const TrustsPeer* const trusts_;
  std::vector<SentPayload>* const sent_;
  State state_ = State::kConnecting;
  absl::Status failure_;
  std::deque<Message> waiting_;
  std::string staged_;  // frames of the next record
  size_t staged_at_ = 0;
  Messenger::Payload bulk_;  // payload that follows the staged frames; bytes 0: none
  size_t bulk_at_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TLS_SENDER_H_
