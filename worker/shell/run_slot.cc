#include "worker/shell/run_slot.h"

#include <cstdlib>
#include <utility>

#include "base/monotonic_clock.h"
#include "worker/shell/exit_code.h"

namespace weft {
namespace {

constexpr int64_t kSessionGoodbye = 500'000'000, kPeersGoodbye = 200'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<RunSlot>> RunSlot::Open(Options options, Device& device, DaemonLog& log) {
  std::unique_ptr<RunSlot> slot(new RunSlot(std::move(options), log));
  if (absl::Status s = slot->Start(device); !s.ok()) return s;
  return slot;
}

absl::Status RunSlot::Start(Device& device) {
  const auto note = [this](const std::string& line) { Write(LogSeverity::kInfo, line); };
  const auto warn = [this](const std::string& line) { Write(LogSeverity::kWarning, line); };
  options_.transport.log = note;
  options_.transport.tls_network.log = warn;
  options_.session.complain = warn;
  absl::StatusOr<std::unique_ptr<Transport>> transport = CreateUcxTransport(options_.transport);
  if (!transport.ok()) return transport.status();
  transport_ = *std::move(transport);
  absl::StatusOr<std::unique_ptr<SessionStream>> stream = SessionStream::Open(options_.session);
  if (!stream.ok()) return absl::FailedPreconditionError(stream.status().message());
  link_ = std::make_unique<SessionLink>(*std::move(stream), note, options_.renews);
  log_.SetListener(this,
                   [this](LogSeverity severity, absl::string_view text) { link_->TellLine(severity, text); });
  loop_ = std::make_unique<WorkerLoop>(options_.loop, device, *transport_, *link_);
  return absl::OkStatus();
}

absl::Status RunSlot::Serve() {
  absl::Status status = loop_->Run();
  if (loop_->hangs()) {  // it cannot be cleaned up
    options_.recorder->DumpNow(status.message());
    std::_Exit(Complain(status, kFailed));
  }
  ended_ = true;
  log_.SetListener(this, nullptr);
  link_->Close(kSessionGoodbye).IgnoreError();
  return status;
}

RunSlot::~RunSlot() { log_.SetListener(this, nullptr); }

void RunSlot::Register() {
  options_.hello.address = transport_->address();
  link_->Send(options_.hello);
}

void RunSlot::Close() { transport_->Close(MonotonicNow() + kPeersGoodbye); }

}  // namespace weft
