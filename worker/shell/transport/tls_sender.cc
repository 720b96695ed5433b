#include "worker/shell/transport/tls_sender.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/require.h"
#include "worker/shell/transport/message_frame.h"

namespace weft {
namespace {

constexpr size_t kRecordBytes = 16 << 10;     // most bytes of a record of TLS
constexpr size_t kGatheredPayload = 4 << 10;  // payloads of at most so many bytes are copied into a record

}  // namespace

TlsSender::TlsSender(int fd, std::unique_ptr<TlsConnection> tls, const TrustsPeer* trusts,
                     std::vector<SentPayload>* sent)
    : fd_(fd), tls_(std::move(tls)), trusts_(trusts), sent_(sent) {}

TlsSender::~TlsSender() {
  Fail(absl::CancelledError("the connection is closed"));
  close(fd_);
}

void TlsSender::Send(absl::string_view header, const Messenger::Payload& payload) {
  Require(header.size() <= Messenger::kMaxHeaderBytes, "a header has at most kMaxHeaderBytes");
  if (state_ == State::kOver) {
    if (payload.bytes > 0) sent_->push_back({payload.token, failure_});
    return;
  }
  Message message;
  AppendLengths({static_cast<uint32_t>(header.size()), payload.bytes}, &message.frame);
  absl::StrAppend(&message.frame, header);
  message.payload = payload;
  waiting_.push_back(std::move(message));
}

size_t TlsSender::Progress(size_t budget) {
  if (!Open()) return 0;
  NoticeEnd();
  size_t done = 0;
  if (state_ == State::kOpen && blocked()) Take(tls_->Flush());
  while (state_ == State::kOpen && !blocked() && busy() && done < budget) {
    if (staged_at_ == staged_.size() && bulk_.bytes == 0) Stage();
    done += staged_at_ < staged_.size() ? WriteStaged() : WriteBulk();
  }
  return done;
}

void TlsSender::Fail(const absl::Status& cause) {
  if (state_ == State::kOver) return;
  state_ = State::kOver;
  failure_ = cause;
  if (bulk_.bytes > 0) sent_->push_back({bulk_.token, cause});
  for (const Message& message : waiting_) {
    if (message.payload.bytes > 0) sent_->push_back({message.payload.token, cause});
  }
  waiting_.clear();
  staged_.clear();
  staged_at_ = 0;
  bulk_ = {};
  shutdown(fd_, SHUT_RDWR);
}

// Returns true once messages can go.
bool TlsSender::Open() {
  if (state_ == State::kConnecting) CheckConnected();
  if (state_ == State::kHandshake && Take(tls_->Handshake()) > 0) CheckPeer();
  return state_ == State::kOpen;
}

void TlsSender::CheckConnected() {
  pollfd connecting{fd_, POLLOUT, 0};
  if (poll(&connecting, 1, 0) <= 0) return;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return Fail(absl::UnavailableError(absl::StrCat("connection: ", std::strerror(error))));
  state_ = State::kHandshake;
}

void TlsSender::CheckPeer() {
  state_ = State::kOpen;
  if ((*trusts_)(tls_->peer_uris())) return;
  Fail(absl::PermissionDeniedError("connection: the certificate of the other side is not a worker's"));
}

void TlsSender::NoticeEnd() {
  char none;
  if (Take(tls_->Read(&none, sizeof none)) > 0) {
    Fail(absl::UnavailableError("connection: the other side sends what nobody asked for"));
  }
}

// Gathers the frames of the next record. A frame with a large payload is its last.
void TlsSender::Stage() {
  staged_.clear();
  staged_at_ = 0;
  while (!waiting_.empty() && staged_.size() < kRecordBytes) {
    const Message message = std::move(waiting_.front());
    waiting_.pop_front();
    staged_ += message.frame;
    const Messenger::Payload& payload = message.payload;
    if (payload.bytes > kGatheredPayload) {
      bulk_ = payload;
      bulk_at_ = 0;
      return;
    }
    if (payload.bytes == 0) continue;
    staged_.append(static_cast<const char*>(payload.data), payload.bytes);
    sent_->push_back({payload.token, absl::OkStatus()});
  }
}

size_t TlsSender::WriteStaged() {
  const size_t moved = Take(tls_->Write(staged_.data() + staged_at_, staged_.size() - staged_at_));
  staged_at_ += moved;
  return moved;
}

size_t TlsSender::WriteBulk() {
  const size_t moved =
      Take(tls_->Write(static_cast<const char*>(bulk_.data) + bulk_at_, bulk_.bytes - bulk_at_));
  bulk_at_ += moved;
  if (state_ == State::kOpen && bulk_at_ == bulk_.bytes) {
    sent_->push_back({bulk_.token, absl::OkStatus()});
    bulk_ = {};
  }
  return moved;
}

size_t TlsSender::Take(ssize_t moved) {
  if (moved > 0) return static_cast<size_t>(moved);
  if (moved < 0 && errno == EAGAIN) return 0;
  Fail(absl::UnavailableError(absl::StrCat("connection: ", tls_->problem())));
  return 0;
}

}  // namespace weft
