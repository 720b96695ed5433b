// Joins a worker loop to a coordinator core of the same process, without a network between them.
#ifndef WEFT_TESTS_CONFORMANCE_LINK_IN_PROCESS_H_
#define WEFT_TESTS_CONFORMANCE_LINK_IN_PROCESS_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "worker/shell/loop/worker_loop.h"

namespace weft {

class LinkInProcess final : public CoordinatorLink {
 public:
  // `send` takes what the worker says, on the worker's threads.
  explicit LinkInProcess(std::function<void(FromWorker)> send) : send_(std::move(send)) {}
  ~LinkInProcess() override { close(event_fd_); }
  void Send(FromWorker message) override { send_(std::move(message)); }
  bool Drain(std::vector<FromCoordinator>* messages) override {
    MutexLock lock(mu_);
    uint64_t count;
    [[maybe_unused]] const ssize_t n = read(event_fd_, &count, sizeof count);
    for (FromCoordinator& m : waiting_) messages->push_back(std::move(m));
    waiting_.clear();
    return true;
  }
  absl::Status status() const override { return absl::OkStatus(); }
  int event_fd() const override { return event_fd_; }
  // Says something to the worker. Any thread.
  void Say(FromCoordinator message) {
    MutexLock lock(mu_);
    waiting_.push_back(std::move(message));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(event_fd_, &one, sizeof one);
  }

 private:
  const std::function<void(FromWorker)> send_;
  const int event_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  Mutex mu_;
  std::vector<FromCoordinator> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft

#endif  // WEFT_TESTS_CONFORMANCE_LINK_IN_PROCESS_H_
