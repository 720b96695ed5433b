// Receives the messages of one peer on a TLS connection that the peer has opened: makes the handshake, checks
// who it is, then reads frames (message_frame.h). No byte of a message is read before the peer is trusted.
//
// A payload is read to where the handler wants it; one that it refuses is read and dropped.
//
// Not thread-safe. It owns the socket. Failure: over() becomes true, `problem` says why; a payload under way
// lands with that cause.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TLS_RECEIVER_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TLS_RECEIVER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/certificates/tls_endpoint.h"
#include "worker/shell/transport/message_frame.h"
#include "worker/shell/transport/messenger.h"
#include "worker/shell/transport/tls_sender.h"

namespace weft {

class TlsReceiver {
 public:
  // Takes an accepted socket that does not block. The handshake is to be done before `deadline` (monotonic
  // clock), which the caller sees to. `trusts` and `handler` outlive the receiver.
  TlsReceiver(int fd, std::unique_ptr<TlsConnection> tls, int64_t deadline, const TrustsPeer* trusts,
              Messenger::Handler* handler);
  ~TlsReceiver();
  TlsReceiver(const TlsReceiver&) = delete;
  TlsReceiver& operator=(const TlsReceiver&) = delete;

  // Reads until nothing is left or about `budget` bytes are read. Returns how much was done; if that is the
  // budget, nobody says when to go on.
  size_t Progress(size_t budget);
  // Ends the connection.
  void End(const std::string& problem);

  int fd() const { return fd_; }
  bool over() const { return part_ == Part::kOver; }
  // Returns true if it waits until the socket can be written to.
  bool blocked() const { return !over() && tls_->wants_write(); }
  bool trusted() const { return trusted_; }
  int64_t deadline() const { return deadline_; }
  const std::string& problem() const { return problem_; }

 private:
  enum class Part { kHandshake, kLengths, kHeader, kPayload, kOver };
  struct Wanted {
    char* to = nullptr;
    size_t bytes = 0;
  };

  size_t Shake();
  // Returns where the next bytes go and how many are missing there.
  Wanted Missing();
  // Takes a part that is whole.
  void Advance();
  void BeginPayload();

  const int fd_;
  const std::unique_ptr<TlsConnection> tls_;
  const int64_t deadline_;
  const TrustsPeer* const trusts_;
  Messenger::Handler* const handler_;
  Part part_ = Part::kHandshake;
  bool trusted_ = false;  // stays true when the connection is over
  std::string problem_;

  std::array<char, kFrameLengthBytes> length_bytes_;
  std::array<char, Messenger::kMaxHeaderBytes> header_;
  FrameLengths lengths_;
  Messenger::Handler::Landing landing_;
  uint64_t got_ = 0;  // bytes of the part
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TLS_RECEIVER_H_
