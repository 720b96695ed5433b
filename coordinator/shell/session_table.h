// Keeps the sessions at the coordinator's shell: their streams come and go, their numbers and links stay.
//
// It turns events of streams into events for the core, and the core's messages into writes. Runs on the
// loop's thread. Invariants: a session has at most one call; a session that the core does not know any more
// is closed.
#ifndef WEFT_COORDINATOR_SHELL_SESSION_TABLE_H_
#define WEFT_COORDINATOR_SHELL_SESSION_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "coordinator/core/events.h"
#include "coordinator/shell/session_call.h"

namespace weft {

// Counts of the table since it began.
struct SessionCounts {
  uint64_t resumed = 0;     // connections that took up a session
  uint64_t refused = 0;     // connections of workers that came back to a session that had ended without them
  uint64_t violations = 0;  // streams that a message ended which no worker sends to this release
};

class SessionTable final : public SessionHost {
 public:
  // Called with the session of a process of this machine, once it has greeted.
  using OnLocal = std::function<void(SessionId session, int64_t pid)>;
  // Called with a line that names the peer of a stream that was refused before a worker greeted on it, and
  // the reason. At most one line a second, so that a stranger floods no log; a line counts those left out
  // before it.
  using OnRefused = std::function<void(const std::string& line)>;
  // Appends to `events`, which outlives it.
  SessionTable(std::vector<Event>* events, const ProtocolVersions& protocol, OnLocal on_local,
               OnRefused on_refused);

  absl::StatusOr<Session*> Attach(SessionCall* call, const v1::Open& open) override;
  void Arrived(Session* session, std::vector<FromWorker> messages) override;
  void Detached(Session* session, bool over, const std::string& reason) override;
  void CountViolation() override { ++counts_.violations; }
  void Refused(int64_t now, const std::string& peer, const absl::Status& why) override;
  ProtocolVersions protocol() const override { return protocol_; }

  // Takes the end of the session's process: the session does not come back. Messages that it has sent still
  // count.
  void EndOfProcess(SessionId id);

  void Send(OutgoingMessage message);
  void Close(const CloseSession& close);

  // Writes every session that has a message, and the acknowledgements that are due, and reads on.
  void Flush(int64_t now);
  int64_t next_deadline() const { return ack_at_; }

  // Returns true if nothing waits to be written or acknowledged on a living stream.
  bool settled() const;
  const SessionCounts& counts() const { return counts_; }

 private:
  Session* Find(SessionId id);
  void Queue(Session* session);

  std::vector<Event>* const events_;
  const ProtocolVersions protocol_;
  const OnLocal on_local_;
  const OnRefused on_refused_;
  const std::string host_, clock_;  // names of this machine, and of this process's monotonic clock
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  std::vector<SessionId> to_write_;
  std::vector<SessionId> to_ack_;
  int64_t ack_at_ = INT64_MAX;
  int64_t next_refusal_ns_ = INT64_MIN;  // time from which on a refusal has a line
  int refusals_without_line_ = 0;        // since the last line
  SessionCounts counts_;
  std::random_device random_;  // makes numbers of sessions, so that they are not guessed from one another
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_SESSION_TABLE_H_
