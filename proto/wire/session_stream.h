// Keeps the worker's end of its session with the coordinator: a stream that survives broken connections.
//
// It connects, says what was received last, and carries messages both ways through the reliable link
// (proto/session/link.h). When a connection breaks it tries again, with growing pauses, until
// `unreachable_ns` have passed without a connection, or `lost_ns` once there was one; messages sent meanwhile
// wait. The caller sees an ordered queue each way and one sticky status. A session that the coordinator has
// ended may be replaced by a new one.
//
// Threads: one own thread polls gRPC, or a caller of Await (proto/session/poll_turn.h). Send, Drain, Await,
// Arm, status, Close may be called from any thread. Send writes at once if no write is in flight, which costs
// some microseconds and no thread switch; else it only queues, and the message goes with the next write.
// Ownership: destruction closes the session without waiting.
// Failure: `status()` turns non-OK once, for good: Unavailable ("coordinator at X unreachable for 30 s: ..")
// or the coordinator's reason for ending the session (Aborted: it does not know the session, as it was
// restarted or gave the worker up; AlreadyExists, FailedPrecondition, InvalidArgument: refused). event_fd()
// becomes readable then too.
#ifndef WEFT_PROTO_WIRE_SESSION_STREAM_H_
#define WEFT_PROTO_WIRE_SESSION_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/security_flags.h"
#include "proto/session/messages.h"
#include "proto/session/protocol_versions.h"

namespace weft {

struct SessionStreamOptions {
  std::string address;  // unix:PATH or HOST:PORT
  SecurityFlags security;
  int64_t unreachable_ns = 30'000'000'000;  // longest time without a connection, at first
  int64_t lost_ns = 30'000'000'000;         // likewise later
  ProtocolVersions protocol = kProtocolVersions;
  // Hears, on another thread, of new certificates that are not taken.
  std::function<void(const std::string&)> complain = nullptr;
};

class SessionStream {
 public:
  virtual ~SessionStream() = default;

  // Starts connecting and returns. InvalidArgument for a malformed address; FailedPrecondition for one that
  // needs TLS where there is none, or for wrong certificates.
  static absl::StatusOr<std::unique_ptr<SessionStream>> Open(const SessionStreamOptions& options);

  virtual void Send(FromWorker message) = 0;

  // Appends the messages that have arrived, in order, and clears event_fd's readiness. Returns false if there
  // was none.
  virtual bool Drain(std::vector<FromCoordinator>* messages) = 0;

  // Does what Drain does, for a caller that polls again and again because it has nothing else to do: no other
  // thread has to be woken between the message and it.
  virtual bool Await(std::vector<FromCoordinator>* messages) = 0;

  // Prepares for waiting on event_fd, after Await: without it, the descriptor may tell of a message 2 ms
  // late.
  virtual void Arm() = 0;

  // Returns a descriptor that is readable while Drain has messages, or once status() is not OK. This object
  // owns it.
  virtual int event_fd() const = 0;

  // Returns OK while the session lives, also while a broken connection is being replaced; Cancelled after
  // Close.
  virtual absl::Status status() const = 0;

  // Waits until the coordinator has acknowledged everything or `wait_ns` passed, says goodbye, and ends the
  // session. Returns DeadlineExceeded if not all was acknowledged, or why the session had ended before.
  virtual absl::Status Close(int64_t wait_ns) = 0;

  // Begins a new session in place of one that has ended, without its messages. Returns false if the session
  // has not ended, or was closed. Do not call it while another thread closes or destroys the session.
  virtual bool Renew() = 0;

  // Returns how often a broken connection was replaced.
  virtual uint64_t reconnects() const = 0;

  // Returns the version of the protocol that both sides speak; 0 before the first connection.
  virtual uint32_t protocol() const = 0;
};

// Returns the version of the gRPC that the process runs with, as "1.51.1".
std::string GrpcVersion();

}  // namespace weft

#endif  // WEFT_PROTO_WIRE_SESSION_STREAM_H_
