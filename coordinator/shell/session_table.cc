#include "coordinator/shell/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock_name.h"
#include "base/host_name.h"
#include "base/monotonic_clock.h"
#include "proto/wire/channel.h"

namespace weft {
namespace {

constexpr int64_t kAckTick = 20'000'000;
constexpr int64_t kBetweenRefusals = 1'000'000'000;  // from one line about a refusal to the next
constexpr size_t kMaxSessions = 16384;
constexpr char kProcessEnded[] = "its process has ended";

}  // namespace

SessionTable::SessionTable(std::vector<Event>* events, const ProtocolVersions& protocol, OnLocal on_local,
                           OnRefused on_refused)
    : events_(events),
      protocol_(protocol),
      on_local_(std::move(on_local)),
      on_refused_(std::move(on_refused)),
      host_(HostName()),
      clock_(ClockName()) {}

Session* SessionTable::Find(SessionId id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second.get();
}

absl::StatusOr<Session*> SessionTable::Attach(SessionCall* call, const v1::Open& open) {
  if (open.session() != 0) {
    Session* session = Find(open.session());
    if (session == nullptr || session->closing.has_value()) {
      ++counts_.refused;
      return absl::AbortedError(
          "this session is not known: the coordinator was restarted, or gave the worker up as lost");
    }
    if (session->call != nullptr) session->call->Abandon();
    session->call = call;
    Queue(session);
    ++counts_.resumed;
    events_->push_back(SessionResumed{session->id});
    return session;
  }
  if (sessions_.size() >= kMaxSessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this coordinator has ", sessions_.size(), " sessions already"));
  }
  SessionId id = 0;
  while (id == 0 || sessions_.count(id) > 0) id = (uint64_t{random_()} << 32) | random_();
  std::unique_ptr<Session>& session = sessions_[id];
  session = std::make_unique<Session>(id);
  session->call = call;
  Queue(session.get());
  events_->push_back(SessionOpened{id});
  return session.get();
}

void SessionTable::Arrived(Session* session, std::vector<FromWorker> messages) {
  for (FromWorker& m : messages) {
    session->clock.Convert(clock_, &m);
    const auto* hello = std::get_if<Hello>(&m);
    if (hello != nullptr && on_local_ && hello->host == host_ && session->call->IsLocal())
      on_local_(session->id, hello->pid);
    events_->push_back(SessionMessage{session->id, std::move(m)});
  }
  Queue(session);
  if (std::exchange(session->ack_queued, true)) return;
  if (to_ack_.empty()) ack_at_ = MonotonicNow() + kAckTick;
  to_ack_.push_back(session->id);
}

void SessionTable::Detached(Session* session, bool over, const std::string& reason) {
  const SessionId id = session->id;
  if (!over && !session->closing.has_value() && !session->process_ended) {
    events_->push_back(SessionBroken{id, reason});
    return;
  }
  const bool lost = !over && session->process_ended;
  events_->push_back(SessionClosed{id, lost ? kProcessEnded : reason});
  sessions_.erase(id);
}

void SessionTable::Refused(int64_t now, const std::string& peer, const absl::Status& why) {
  if (now < next_refusal_ns_) {
    ++refusals_without_line_;
    return;
  }
  next_refusal_ns_ = now + kBetweenRefusals;
  std::string line = absl::StrCat("a worker at ", peer, " was refused: ", why.message());
  const int others = std::exchange(refusals_without_line_, 0);
  if (others > 0) absl::StrAppend(&line, " (", others, " more were refused since the last such line)");
  on_refused_(line);
}

void SessionTable::EndOfProcess(SessionId id) {
  Session* session = Find(id);
  if (session == nullptr) return;
  session->process_ended = true;
  // The rest of its stream is read first; then the stream breaks.
  if (session->call != nullptr) return;
  events_->push_back(SessionClosed{id, kProcessEnded});
  sessions_.erase(id);
}

void SessionTable::Queue(Session* session) {
  if (std::exchange(session->queued, true)) return;
  to_write_.push_back(session->id);
}

void SessionTable::Send(OutgoingMessage message) {
  Session* session = Find(message.session);
  if (session == nullptr) return;  // it ended while the core decided
  session->end.Send(std::move(message.message));
  const absl::Status kept = session->end.CheckBacklog();
  if (kept.ok()) return Queue(session);
  if (session->call != nullptr) session->call->Abandon();
  events_->push_back(SessionClosed{session->id, std::string(kept.message())});
  sessions_.erase(message.session);
}

void SessionTable::Close(const CloseSession& close) {
  Session* session = Find(close.session);
  if (session == nullptr) return;
  if (session->call == nullptr) {
    sessions_.erase(close.session);
    return;
  }
  session->closing = close.status;
  Queue(session);
}

void SessionTable::Flush(int64_t now) {
  // Flushing may end sessions, so they are looked up by number.
  const std::vector<SessionId> to_write = std::exchange(to_write_, {});
  for (SessionId id : to_write) {
    Session* session = Find(id);
    if (session == nullptr) continue;
    session->queued = false;
    if (session->call != nullptr) session->call->Flush(now);
  }
  if (now < ack_at_) return;
  const std::vector<SessionId> to_ack = std::exchange(to_ack_, {});
  ack_at_ = INT64_MAX;
  for (SessionId id : to_ack) {
    Session* session = Find(id);
    if (session == nullptr) continue;
    session->ack_queued = false;
    if (session->call == nullptr) continue;
    session->call->Flush(now);
    session = Find(id);
    if (session == nullptr || session->end.next_deadline() == INT64_MAX) continue;
    session->ack_queued = true;
    to_ack_.push_back(id);
  }
  if (!to_ack_.empty()) ack_at_ = now + kAckTick;
}

bool SessionTable::settled() const {
  return std::all_of(sessions_.begin(), sessions_.end(), [](const auto& entry) {
    const Session& s = *entry.second;
    return s.call == nullptr || (s.end.settled() && !s.closing.has_value());
  });
}

}  // namespace weft
