#include "coordinator/shell/process_watch.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/threads.h"

namespace weft {

ProcessWatch::ProcessWatch() : epoll_(epoll_create1(EPOLL_CLOEXEC)), stop_(eventfd(0, EFD_CLOEXEC)) {
  epoll_event stop{EPOLLIN, {.fd = stop_}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, stop_, &stop);
  thread_ = StartThread([this] { Run(); });
}

ProcessWatch::~ProcessWatch() {
  eventfd_write(stop_, 1);
  thread_.join();
  MutexLock lock(mu_);
  for (const auto& [descriptor, ended] : watched_) close(descriptor);
  close(stop_);
  close(epoll_);
}

void ProcessWatch::Watch(pid_t pid, std::function<void()> ended) {
  // The kernel sets FD_CLOEXEC on it.
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (descriptor < 0) return;
  MutexLock lock(mu_);
  watched_[descriptor] = std::move(ended);
  epoll_event readable{EPOLLIN, {.fd = descriptor}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &readable) == 0) return;
  watched_.erase(descriptor);
  close(descriptor);
}

std::function<void()> ProcessWatch::Take(int descriptor) {
  MutexLock lock(mu_);
  std::function<void()> ended = std::move(watched_[descriptor]);
  watched_.erase(descriptor);
  close(descriptor);
  return ended;
}

void ProcessWatch::Run() {
  while (true) {
    epoll_event event{};
    const int ready = epoll_wait(epoll_, &event, 1, -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 || event.data.fd == stop_) return;
    Take(event.data.fd)();
  }
}

}  // namespace weft
