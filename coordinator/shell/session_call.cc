#include "coordinator/shell/session_call.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "proto/wire/channel.h"
#include "proto/wire/packet_reader.h"
#include "proto/wire/session_codec.h"

namespace weft {

SessionCall::SessionCall(SessionService* service, grpc::ServerCompletionQueue* queue, SessionHost* host,
                         std::function<void()> accepted)
    : host_(host), accepted_(std::move(accepted)) {
  for (int kind = 0; kind < kKinds; ++kind) operations_[kind] = {this, kind};
  service->RequestSession(&context_, &stream_, queue, queue, Begin(kAccepted));
}

void* SessionCall::Begin(Kind kind) {
  ++in_flight_;
  return &operations_[kind];
}

bool SessionCall::OnDone(int kind, bool ok) {
  --in_flight_;
  switch (kind) {
    case kAccepted:
      if (!ok) return false;
      accepted_();
      stream_.Read(&bytes_, Begin(kRead));
      break;
    case kRead:
      OnRead(ok);
      break;
    case kWritten:
      // When a write fails the call is dead, and the read that is always pending reports it.
      writing_ = !ok;
      if (finish_.has_value()) {
        writing_ = false;
        FinishNow();
      } else if (ok) {
        WriteNext(MonotonicNow());
      }
      break;
    default:
      break;
  }
  return in_flight_ > 0 || read_due_;
}

void SessionCall::OnRead(bool ok) {
  if (!ok) {
    Leave(/*over=*/false, "its connection broke");
    Finish(absl::OkStatus());
    return;
  }
  if (finish_.has_value()) return;  // the stream ends: no more messages are wanted
  // One read is pending or due while the stream lives, so that its end is noticed.
  read_due_ = true;
  OnBytes();
  if (session_ == nullptr) ReadAgain();
}

void SessionCall::ReadAgain() {
  if (std::exchange(read_due_, false)) stream_.Read(&bytes_, Begin(kRead));
}

void SessionCall::OnBytes() {
  const absl::Status s = ReadWorkerMessage(&bytes_, HasGreeted(), &in_);
  if (!s.ok()) return EndForViolation(s);
  session_ == nullptr ? OnFirst() : OnPacket();
}

void SessionCall::Write() {
  grpc::ByteBuffer bytes;
  bool own = false;
  const grpc::Status s = grpc::SerializationTraits<v1::CoordinatorMessage>::Serialize(out_, &bytes, &own);
  if (!s.ok()) {
    Leave(/*over=*/true, "a message to it cannot be written");
    return Finish(absl::InternalError(s.error_message()));
  }
  writing_ = true;
  stream_.Write(bytes, Begin(kWritten));
}

void SessionCall::OnFirst() {
  if (!in_.has_open())
    return EndForViolation(absl::InvalidArgumentError("the first message of a stream must be `open`"));
  const absl::StatusOr<uint32_t> protocol = ChooseProtocol(wire::Decode(in_.open()), host_->protocol());
  if (!protocol.ok()) return EndForViolation(protocol.status());
  absl::StatusOr<Session*> session = host_->Attach(this, in_.open());
  if (!session.ok()) return Finish(session.status());
  session_ = *session;
  const absl::Status resumed = session_->end.Resume(MonotonicNow(), in_.open().received());
  if (!resumed.ok()) {
    Leave(/*over=*/true, std::string(resumed.message()));
    return Finish(resumed);
  }
  v1::Open* open = out_.mutable_open();
  wire::Encode(host_->protocol(), open);
  open->set_session(session_->id);
  open->set_received(session_->end.received());
  Write();
}

void SessionCall::OnPacket() {
  if (in_.bye()) {
    Leave(/*over=*/true, "it said goodbye");
    return Finish(absl::OkStatus());
  }
  std::vector<FromWorker> messages;
  const int64_t now = MonotonicNow();
  session_->clock.Observe(in_.sent_ns(), now);
  const absl::Status s = session_->end.Receive(now, in_, &messages);
  host_->Arrived(session_, std::move(messages));
  if (!s.ok()) EndForViolation(s);
}

void SessionCall::EndForViolation(const absl::Status& violation) {
  host_->CountViolation();
  if (!HasGreeted()) host_->Refused(MonotonicNow(), context_.peer(), violation);
  Leave(/*over=*/true, absl::StrCat("it broke the protocol: ", violation.message()));
  Finish(violation);
}

void SessionCall::Leave(bool over, const std::string& reason) {
  if (session_ == nullptr) return;
  Session* session = std::exchange(session_, nullptr);
  session->call = nullptr;
  ReadAgain();
  host_->Detached(session, over, reason);
}

void SessionCall::Flush(int64_t now) {
  WriteNext(now);
  ReadAgain();
}

void SessionCall::WriteNext(int64_t now) {
  if (writing_ || finish_.has_value() || session_ == nullptr) return;
  const absl::StatusOr<bool> next = session_->end.Next(now, &out_);
  if (!next.ok()) {
    Leave(/*over=*/true, std::string(next.status().message()));
    return Finish(next.status());
  }
  if (*next) {
    Write();
  } else if (session_->closing.has_value()) {
    const absl::Status status = *session_->closing;
    Leave(/*over=*/true, "closed");
    Finish(status);
  }
}

void SessionCall::Abandon() {
  session_ = nullptr;
  context_.TryCancel();
  ReadAgain();
}

bool SessionCall::HasGreeted() const { return session_ != nullptr && session_->end.received() > 0; }

bool SessionCall::IsLocal() const {
  const std::string peer = context_.peer();
  for (const char* local : {"unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D"}) {
    if (absl::StartsWith(peer, local)) return true;
  }
  return false;
}

void SessionCall::Finish(const absl::Status& status) {
  if (finish_.has_value()) return;
  finish_ = status;
  if (!writing_) FinishNow();
}

void SessionCall::FinishNow() {
  if (std::exchange(finish_begun_, true)) return;
  stream_.Finish(ToGrpc(*finish_), Begin(kFinished));
}

}  // namespace weft
