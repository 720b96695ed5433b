#include "worker/shell/transport/tls_receiver.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/status/status.h"

namespace weft {
namespace {

// Bytes of a refused payload that are read at once. Their content is of no interest, so all share the place.
constexpr size_t kDroppedBytes = 64 << 10;
char* Dropped() {
  thread_local std::array<char, kDroppedBytes> dropped;
  return dropped.data();
}

}  // namespace

TlsReceiver::TlsReceiver(int fd, std::unique_ptr<TlsConnection> tls, int64_t deadline,
                         const TrustsPeer* trusts, Messenger::Handler* handler)
    : fd_(fd), tls_(std::move(tls)), deadline_(deadline), trusts_(trusts), handler_(handler) {}

TlsReceiver::~TlsReceiver() {
  End("the connection is closed");
  close(fd_);
}

void TlsReceiver::End(const std::string& problem) {
  if (over()) return;
  const bool landing = part_ == Part::kPayload && landing_.to != nullptr;
  part_ = Part::kOver;
  problem_ = problem;
  if (landing) handler_->OnLanded(landing_.token, absl::UnavailableError(problem));
}

size_t TlsReceiver::Progress(size_t budget) {
  size_t done = part_ == Part::kHandshake ? Shake() : 0;
  if (part_ == Part::kHandshake) return done;
  while (!over() && done < budget) {
    const Wanted wanted = Missing();
    const ssize_t n = tls_->Read(wanted.to, wanted.bytes);
    if (n <= 0) {
      if (n == 0 || errno != EAGAIN) End(tls_->problem());
      return done;
    }
    done += static_cast<size_t>(n);
    got_ += static_cast<uint64_t>(n);
    if (Missing().bytes == 0) Advance();
  }
  return done;
}

size_t TlsReceiver::Shake() {
  if (tls_->Handshake() < 0) {
    if (errno != EAGAIN) End(tls_->problem());
    return 0;
  }
  if (!(*trusts_)(tls_->peer_uris())) {
    End("its certificate is not a worker's");
    return 0;
  }
  trusted_ = true;
  part_ = Part::kLengths;
  return 1;
}

TlsReceiver::Wanted TlsReceiver::Missing() {
  switch (part_) {
    case Part::kLengths:
      return {length_bytes_.data() + got_, length_bytes_.size() - got_};
    case Part::kHeader:
      return {header_.data() + got_, lengths_.header - got_};
    case Part::kPayload: {
      const uint64_t missing = lengths_.payload - got_;
      if (landing_.to != nullptr) return {static_cast<char*>(landing_.to) + got_, missing};
      return {Dropped(), std::min<uint64_t>(missing, kDroppedBytes)};
    }
    case Part::kHandshake:
    case Part::kOver:
      return {};
  }
  return {};
}

void TlsReceiver::Advance() {
  got_ = 0;
  if (part_ == Part::kLengths) {
    const std::optional<FrameLengths> lengths =
        ReadLengths({length_bytes_.data(), length_bytes_.size()}, Messenger::kMaxHeaderBytes);
    if (!lengths.has_value()) return End("it sends what is no message");
    lengths_ = *lengths;
    part_ = Part::kHeader;
  } else if (part_ == Part::kHeader && lengths_.payload > 0) {
    BeginPayload();
  } else if (part_ == Part::kHeader) {
    part_ = Part::kLengths;
    handler_->OnMessage({header_.data(), lengths_.header});
  } else if (part_ == Part::kPayload) {
    part_ = Part::kLengths;
    if (landing_.to != nullptr) handler_->OnLanded(landing_.token, absl::OkStatus());
  }
}

void TlsReceiver::BeginPayload() {
  part_ = Part::kPayload;
  landing_ = handler_->OnPayload({header_.data(), lengths_.header}, lengths_.payload);
  if (landing_.to == nullptr || landing_.place == MemoryPlace::kHost) return;
  handler_->OnLanded(landing_.token, absl::InternalError("device memory does not go over TLS"));
  landing_.to = nullptr;
}

}  // namespace weft
