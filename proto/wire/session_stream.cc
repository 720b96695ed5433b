#include "proto/wire/session_stream.h"

#include <grpcpp/alarm.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "base/threads.h"
#include "proto/session/poll_turn.h"
#include "proto/wire/channel.h"
#include "proto/wire/limits.h"
#include "proto/wire/stream_end.h"
#include "weft/v1/session.grpc.pb.h"

namespace weft {
namespace {

// Time from starting a connection to the coordinator's `open`.
constexpr int64_t kOpenTimeout = 10'000'000'000;
constexpr int64_t kFirstPause = 20'000'000;
constexpr int64_t kLongestPause = 250'000'000;
constexpr int64_t kLastWords = 2'000'000'000;  // time for the coordinator to take leave

using Stream = grpc::ClientAsyncReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>;

// A connection: one gRPC call with its own completion queue, so that it can be given up and drained by
// itself.
struct Connection {
  enum Tag : intptr_t { kStarted = 1, kRead, kWritten, kFinished, kKicked };

  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Alarm kick;  // ends a wait in the queue
  std::unique_ptr<Stream> stream;
  v1::CoordinatorMessage in;
  v1::WorkerMessage out;
  grpc::Status status;
  bool read_due = false;     // no read is pending, and one should be
  bool opened = false;       // the coordinator answered `open`
  bool writing = false;      // a write is in flight
  bool half_closed = false;  // the last write was begun
  bool kicking = false;      // `kick` is in the queue
  bool finished = false;     // the call is over
};

void* AsTag(Connection::Tag tag) { return reinterpret_cast<void*>(tag); }

// Returns true if a connection that ended so may be replaced; any other end is the coordinator's decision.
bool MayReconnect(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
      return true;
    default:
      return false;
  }
}

class GrpcSessionStream final : public SessionStream {
 public:
  GrpcSessionStream(SessionStreamOptions options, std::shared_ptr<grpc::Channel> channel)
      : options_(std::move(options)),
        event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        channel_(std::move(channel)),
        stub_(v1::Coordination::NewStub(channel_)),
        thread_(StartThread([this] { Run(); })) {}

  ~GrpcSessionStream() override {
    {
      MutexLock lock(mu_);
      Stop();
    }
    thread_.join();
    close(event_fd_);
  }

  void Send(FromWorker message) override {
    MutexLock lock(mu_);
    if (!status_.ok()) return;
    end_.Send(std::move(message));
    if (absl::Status s = end_.CheckBacklog(); !s.ok()) {
      End(absl::Status(s.code(), absl::StrCat("coordinator at ", options_.address, ": ", s.message())));
      if (connection_ != nullptr) connection_->context.TryCancel();
      return;
    }
    WriteIfIdle();
  }

  bool Drain(std::vector<FromCoordinator>* messages) override {
    MutexLock lock(mu_);
    GiveBackTurn();
    return TakeArrived(messages);
  }

  bool Await(std::vector<FromCoordinator>* messages) override {
    MutexLock lock(mu_);
    if (arrived_.empty()) {
      PollForCaller();
    } else {
      turn_.NoteArrived(MonotonicNow());
    }
    return TakeArrived(messages);
  }

  void Arm() override {
    MutexLock lock(mu_);
    GiveBackTurn();
  }

  int event_fd() const override { return event_fd_; }

  absl::Status status() const override {
    MutexLock lock(mu_);
    return status_;
  }

  uint32_t protocol() const override {
    MutexLock lock(mu_);
    return protocol_;
  }

  uint64_t reconnects() const override {
    MutexLock lock(mu_);
    return reconnects_;
  }

  bool Renew() override {
    {
      MutexLock lock(mu_);
      if (!over_ || closing_ || stopping_) return false;
    }
    thread_.join();  // it has ended, or is about to
    {
      MutexLock lock(mu_);
      std::destroy_at(&end_);
      std::construct_at(&end_);
      arrived_.clear();
      session_ = 0;
      over_ = false;
      status_ = absl::OkStatus();
    }
    thread_ = StartThread([this] { Run(); });
    return true;
  }

  absl::Status Close(int64_t wait_ns) override {
    MutexLock lock(mu_);
    const int64_t start = MonotonicNow();
    const int64_t deadline = start + std::min(wait_ns, INT64_MAX - start);
    while (!over_ && !end_.settled() && WaitUntil(deadline)) {
    }
    absl::Status before = status_;
    const bool settled = end_.settled();
    closing_ = true;
    if (connection_ != nullptr) WriteIfIdle();
    const int64_t last = std::min(deadline, MonotonicNow() + kLastWords);
    while (!over_ && WaitUntil(last)) {
    }
    Stop();
    if (!before.ok()) return before;
    if (!settled)
      return absl::DeadlineExceededError("the coordinator has not acknowledged the last messages");
    return absl::OkStatus();
  }

 private:
  void Stop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    stopping_ = true;
    if (connection_ != nullptr) connection_->context.TryCancel();
    GiveBackTurn();
    changed_.SignalAll();
  }

  void GiveBackTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (turn_.Rest()) own_turn_.Signal();
  }

  bool TakeArrived(std::vector<FromCoordinator>* messages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (status_.ok() && signalled_) {
      uint64_t count;
      while (read(event_fd_, &count, sizeof(count)) > 0) {
      }
      signalled_ = false;
    }
    if (arrived_.empty()) return false;
    messages->insert(messages->end(), std::make_move_iterator(arrived_.begin()),
                     std::make_move_iterator(arrived_.end()));
    arrived_.clear();
    return true;
  }

  // Waits for a change; returns false when it is too late to wait for one.
  bool WaitUntil(int64_t deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t now = MonotonicNow();
    if (now < deadline) changed_.WaitWithTimeout(mu_, deadline - now);
    return now < deadline;
  }

  void Signal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    signalled_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(event_fd_, &one, sizeof(one));
  }

  void End(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (status_.ok()) status_ = std::move(status);
    over_ = true;
    changed_.SignalAll();
    Signal();
  }

  // ---- writing

  void WriteIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Connection* c = connection_;
    if (c == nullptr || !c->opened || c->writing || c->half_closed) return;
    absl::StatusOr<bool> next = end_.Next(MonotonicNow(), &c->out);
    if (!next.ok()) {
      End(next.status());
      c->context.TryCancel();
      return;
    }
    if (*next) {
      c->writing = true;
      c->out.set_sent_ns(MonotonicNow());
      c->stream->Write(c->out, AsTag(Connection::kWritten));
      ReadAgain(c);
    } else if (closing_) {
      c->writing = c->half_closed = true;
      c->out.Clear();
      c->out.set_bye(true);
      c->stream->WriteLast(c->out, grpc::WriteOptions(), AsTag(Connection::kWritten));
    }
  }

  // Begins the next read. gRPC sends a packet of its own then, to admit what was read before: an answer goes
  // first where it can.
  void ReadAgain(Connection* c) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (std::exchange(c->read_due, false)) c->stream->Read(&c->in, AsTag(Connection::kRead));
  }

  // ---- the thread

  void Run() {
    int64_t pause = kFirstPause;
    int64_t connected_at = MonotonicNow();  // time of the last connection, or when connecting began
    for (;;) {
      Connection c;
      const grpc::Status status = Serve(&c);
      const int64_t now = MonotonicNow();
      MutexLock lock(mu_);
      if (c.opened) {
        connected_at = now;
        pause = kFirstPause;
        was_open_ = true;
      }
      if (stopping_ || closing_) return End(absl::CancelledError("the session was closed"));
      if (!status_.ok()) return End(status_);
      if (status.ok()) return End(absl::AbortedError("the coordinator ended the session"));
      if (!MayReconnect(status)) return End(Describe(status));
      const int64_t patience = was_open_ ? options_.lost_ns : options_.unreachable_ns;
      if (now - connected_at >= patience) {
        return End(
            absl::UnavailableError(absl::StrCat("coordinator at ", options_.address, " unreachable for ",
                                                patience / 1'000'000'000, " s: ", status.error_message())));
      }
      mu_.Unlock();
      // gRPC gets on with a connection only while somebody waits for it: without that, a coordinator that is
      // there again would be noticed seconds later.
      channel_->WaitForConnected(DeadlineAt(MonotonicNow() + pause));
      mu_.Lock();
      pause = std::min(pause * 2, kLongestPause);
    }
  }

  absl::Status Describe(const grpc::Status& status) const {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat("coordinator at ", options_.address, ": ", status.error_message()));
  }

  // Carries one connection from its start to its end; returns how it ended.
  grpc::Status Serve(Connection* c) {
    c->stream = stub_->PrepareAsyncSession(&c->context, &c->queue);
    {
      MutexLock lock(mu_);
      if (stopping_) c->context.TryCancel();
      connection_ = c;
    }
    c->stream->StartCall(AsTag(Connection::kStarted));
    int64_t open_deadline = MonotonicNow() + kOpenTimeout;
    {
      MutexLock lock(mu_);
      while (!c->finished || turn_.caller_polls()) {
        if (const int64_t wait = turn_.TakeForOwn(MonotonicNow()); wait > 0) {
          own_turn_.WaitWithTimeout(mu_, wait);
        } else {
          Poll(c, DeadlineAt(std::min(open_deadline, NextDeadline())));
        }
        if (c->opened) {
          open_deadline = INT64_MAX;
          WriteIfIdle();
        } else if (MonotonicNow() >= open_deadline) {
          c->context.TryCancel();
          open_deadline = INT64_MAX;
        }
      }
      connection_ = nullptr;  // from here no other thread touches it
    }
    c->queue.Shutdown();
    void* tag;
    bool ok;
    while (c->queue.Next(&tag, &ok)) {
    }
    return c->status;
  }

  // Polls the queue until an event or the deadline and handles the event, without the lock. The caller has
  // the turn, which this gives back.
  void Poll(Connection* c, gpr_timespec deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ReadAgain(c);
    mu_.Unlock();
    void* tag = nullptr;
    bool ok = false;
    if (c->queue.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT)
      Handle(c, static_cast<Connection::Tag>(reinterpret_cast<intptr_t>(tag)), ok);
    mu_.Lock();
    turn_.Return();
  }

  // Polls once, for a caller that has found nothing, if it is its turn.
  void PollForCaller() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Connection* c = connection_;
    if (c == nullptr || !c->opened || c->finished) return;
    const int64_t now = MonotonicNow();
    if (!turn_.TakeForCaller(now)) {
      if (turn_.own_is_in_the_way() && !std::exchange(c->kicking, true))
        c->kick.Set(&c->queue, gpr_time_0(GPR_CLOCK_MONOTONIC), AsTag(Connection::kKicked));
      return;
    }
    // Long ago, since gRPC rounds times up to its next millisecond and would wait for that.
    Poll(c, gpr_time_0(GPR_CLOCK_MONOTONIC));
    WriteIfIdle();
    if (c->finished) own_turn_.Signal();
  }

  void Handle(Connection* c, Connection::Tag tag, bool ok) {
    switch (tag) {
      case Connection::kStarted:
        if (ok) {
          WriteOpen(c);
          c->stream->Read(&c->in, AsTag(Connection::kRead));
        } else {
          c->stream->Finish(&c->status, AsTag(Connection::kFinished));
        }
        break;
      case Connection::kRead:
        if (!ok || !TakeIn(c)) c->stream->Finish(&c->status, AsTag(Connection::kFinished));
        break;
      case Connection::kWritten: {
        // When a write fails the call is dead, and the read that is pending or due says so.
        MutexLock lock(mu_);
        c->writing = !ok;
        break;
      }
      case Connection::kKicked: {
        MutexLock lock(mu_);
        c->kicking = false;
        break;
      }
      case Connection::kFinished: {
        MutexLock lock(mu_);
        c->finished = true;
        break;
      }
    }
  }

  void WriteOpen(Connection* c) {
    MutexLock lock(mu_);
    v1::Open* open = c->out.mutable_open();
    wire::Encode(options_.protocol, open);
    open->set_session(session_);
    open->set_received(end_.received());
    c->writing = true;
    c->stream->Write(c->out, AsTag(Connection::kWritten));
  }

  // Returns false when the session is over for a fault in what came.
  bool TakeIn(Connection* c) {
    MutexLock lock(mu_);
    const int64_t now = MonotonicNow();
    const size_t before = arrived_.size();
    const absl::Status s = c->opened ? end_.Receive(now, c->in, &arrived_) : TakeOpen(c, now);
    if (!s.ok()) {
      End(absl::Status(s.code(), absl::StrCat("coordinator at ", options_.address, ": ", s.message())));
      c->context.TryCancel();
      return false;
    }
    c->read_due = true;
    changed_.SignalAll();  // it may have acknowledged what Close waits for
    if (before == 0 && !arrived_.empty() && !turn_.caller_polls()) Signal();
    return true;
  }

  absl::Status TakeOpen(Connection* c, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!c->in.has_open()) return absl::InvalidArgumentError("the first message of its stream is not `open`");
    if (session_ != 0 && c->in.open().session() != session_) {
      return absl::InvalidArgumentError("it resumed another session than was asked for");
    }
    const absl::StatusOr<uint32_t> protocol = ChooseProtocol(options_.protocol, wire::Decode(c->in.open()));
    if (!protocol.ok()) return protocol.status();
    protocol_ = *protocol;
    if (session_ != 0) ++reconnects_;
    session_ = c->in.open().session();
    c->opened = true;
    return end_.Resume(now, c->in.open().received());
  }

  int64_t NextDeadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return connection_->opened && !connection_->writing ? end_.next_deadline() : INT64_MAX;
  }

  const SessionStreamOptions options_;
  const int event_fd_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Coordination::Stub> stub_;

  mutable Mutex mu_;
  CondVar changed_;   // signals over_, stopping_, or what end_ has acknowledged
  CondVar own_turn_;  // signals to the own thread that it may poll
  PollTurn turn_ ABSL_GUARDED_BY(mu_);
  StreamEnd<FromWorker, FromCoordinator> end_ ABSL_GUARDED_BY(mu_);
  std::vector<FromCoordinator> arrived_ ABSL_GUARDED_BY(mu_);
  Connection* connection_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool signalled_ ABSL_GUARDED_BY(mu_) = false;  // event_fd_ was written
  uint64_t session_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t reconnects_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t protocol_ ABSL_GUARDED_BY(mu_) = 0;
  bool was_open_ ABSL_GUARDED_BY(mu_) = false;  // the coordinator has answered before
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // last: it uses everything above
};

}  // namespace

absl::StatusOr<std::unique_ptr<SessionStream>> SessionStream::Open(const SessionStreamOptions& options) {
  const absl::StatusOr<std::vector<Address>> addresses = ParseAddresses(options.address);
  if (!addresses.ok()) return addresses.status();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
      OpenChannel(*addresses, options.security, options.complain);
  if (!channel.ok()) return channel.status();
  return std::make_unique<GrpcSessionStream>(options, *std::move(channel));
}

std::string GrpcVersion() { return grpc::Version(); }

}  // namespace weft
