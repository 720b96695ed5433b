// The worker's session over gRPC as the loop's CoordinatorLink.
#ifndef WEFT_WORKER_SHELL_SESSION_LINK_H_
#define WEFT_WORKER_SHELL_SESSION_LINK_H_

#include <memory>
#include <utility>
#include <vector>

#include "proto/wire/session_stream.h"
#include "worker/shell/worker_loop.h"

namespace weft {

class SessionLink final : public CoordinatorLink {
 public:
  explicit SessionLink(std::unique_ptr<SessionStream> stream) : stream_(std::move(stream)) {}

  void Send(FromWorker message) override { stream_->Send(std::move(message)); }
  bool Drain(std::vector<FromCoordinator>* messages) override {
    return stream_->Drain(messages) || stream_->status().ok();
  }
  absl::Status status() const override { return stream_->status(); }
  int event_fd() const override { return stream_->event_fd(); }

  // Waits until the coordinator has everything, then says goodbye.
  absl::Status Close(int64_t wait_ns) { return stream_->Close(wait_ns); }

 private:
  std::unique_ptr<SessionStream> stream_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_SESSION_LINK_H_
