// Serves one connection of a session at the coordinator: a gRPC stream, read continuously, with at most one
// write in flight.
//
// The next read begins when what came has been answered, at the end of the loop's turn: gRPC sends a packet
// of its own then, to admit what was read before, which would wake the worker ahead of the answer.
//
// While a write is in flight, the core's messages gather in the session's StreamEnd; the next write takes all
// of them. A session outlives its call: when the stream breaks, the session stays and a later call takes it
// over (session_table.h).
//
// accepted --first message--> attached --stream ends--> over
//
// Runs on the loop's thread; owned by the loop.
#ifndef WEFT_COORDINATOR_SHELL_SESSION_CALL_H_
#define WEFT_COORDINATOR_SHELL_SESSION_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/events.h"
#include "coordinator/shell/call.h"
#include "coordinator/shell/session_clock.h"
#include "proto/session/protocol_versions.h"
#include "proto/wire/stream_end.h"
#include "weft/v1/session.grpc.pb.h"

namespace weft {

class SessionCall;

// The service with raw bytes, so that the size of a message is checked before it becomes an object.
using SessionService = v1::Coordination::WithRawMethod_Session<v1::Coordination::Service>;

struct Session {
  explicit Session(SessionId number) : id(number) {}
  const SessionId id;
  StreamEnd<FromCoordinator, FromWorker> end;
  SessionClock clock;
  SessionCall* call = nullptr;          // call of its stream; null while broken
  std::optional<absl::Status> closing;  // status with which it ends once everything waiting is written
  bool queued = false;                  // true while it is in the table's list of sessions to write
  bool ack_queued = false;              // true while it is in the table's list of sessions to acknowledge
  bool process_ended = false;           // true once its process is known to have ended
};

// Takes the reports of a call for the table of sessions.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  // Returns a new session, or the broken one that `open` names.
  virtual absl::StatusOr<Session*> Attach(SessionCall* call, const v1::Open& open) = 0;
  virtual void Arrived(Session* session, std::vector<FromWorker> messages) = 0;
  // Takes leave of a stream that is gone. `over`: for good, by goodbye or a fault; else the session may be
  // resumed.
  virtual void Detached(Session* session, bool over, const std::string& reason) = 0;
  // Counts a message that no worker of a release that may come here sends, which ends its stream.
  virtual void CountViolation() = 0;
  // Takes why a peer's stream ends before a worker has greeted on it, so that the core knows no worker to
  // name.
  virtual void Refused(int64_t now, const std::string& peer, const absl::Status& why) = 0;
  // Returns the versions of the protocol that the coordinator speaks.
  virtual ProtocolVersions protocol() const = 0;
};

class SessionCall final : public Call {
 public:
  // Waits for one stream to come in. `accepted` is called when it did, to wait for the next one.
  SessionCall(SessionService* service, grpc::ServerCompletionQueue* queue, SessionHost* host,
              std::function<void()> accepted);

  bool OnDone(int kind, bool ok) override;

  // Writes the session's messages, or ends the stream if it is closing, unless a write is in flight; then
  // reads on.
  void Flush(int64_t now);
  // Gives the session up to another call that took it over.
  void Abandon();
  // Returns true if the other end is on this machine.
  bool IsLocal() const;

 private:
  enum Kind { kAccepted, kRead, kWritten, kFinished, kKinds };

  // Returns true once the first message of the session has come.
  bool HasGreeted() const;
  void OnRead(bool ok);
  void OnBytes();
  void OnFirst();
  void WriteNext(int64_t now);
  void Write();
  void ReadAgain();
  void OnPacket();
  void Leave(bool over, const std::string& reason);
  // Ends the stream and its session, if it has one, because of a message that no worker sends to this
  // release.
  void EndForViolation(const absl::Status& violation);
  void Finish(const absl::Status& status);
  void FinishNow();
  void* Begin(Kind kind);

  SessionHost* const host_;
  const std::function<void()> accepted_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&context_};
  grpc::ByteBuffer bytes_;
  v1::WorkerMessage in_;
  v1::CoordinatorMessage out_;
  Operation operations_[kKinds];
  int in_flight_ = 0;
  bool read_due_ = false;  // no read is pending, and one should be
  bool writing_ = false;
  Session* session_ = nullptr;
  std::optional<absl::Status> finish_;  // status with which the stream ends; nothing else is written
  bool finish_begun_ = false;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_SESSION_CALL_H_
