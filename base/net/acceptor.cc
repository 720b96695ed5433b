#include "base/net/acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/threads.h"

namespace weft {
namespace {

// Pause before another look at a socket that stays readable, because its connection can be neither taken nor
// refused.
constexpr int kPauseMs = 20;

}  // namespace

Acceptor::Acceptor(std::unique_ptr<Listener> listener, std::function<void(int)> take)
    : listener_(std::move(listener)), take_(std::move(take)), stop_(eventfd(0, EFD_CLOEXEC)) {
  thread_ = StartThread([this] { Run(); });
}

Acceptor::~Acceptor() {
  eventfd_write(stop_, 1);
  thread_.join();
  close(stop_);
}

void Acceptor::Run() {
  bool idle = false;  // true if the last look found nothing although a socket was readable
  while (true) {
    std::vector<pollfd> descriptors = {{stop_, POLLIN, 0}};
    if (!idle) listener_->AddTo(&descriptors);
    poll(descriptors.data(), descriptors.size(), idle ? kPauseMs : -1);
    if (descriptors[0].revents != 0) return;
    const uint64_t refused = refused_;
    int taken = 0;
    for (int fd = listener_->Accept(); fd >= 0; fd = listener_->Accept(), ++taken) take_(fd);
    refused_ = listener_->refused();
    idle = !idle && taken == 0 && refused_ == refused;
  }
}

}  // namespace weft
