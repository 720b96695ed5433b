// Watches processes of this machine that others own, and says when one has ended.
//
// A worker that is killed leaves a broken connection, as a network does that fails for a moment. On its own
// machine the coordinator need not wait to tell the two apart: the kernel says that the process is gone
// (pidfd_open(2)).
//
// Threads: Watch from any; callbacks on a thread of its own, without a lock. Destruction ends that thread and
// forgets the rest. Failure: a process that cannot be watched, for want of the right or of descriptors, is
// left unwatched, and its loss is found by time.
#ifndef WEFT_COORDINATOR_SHELL_PROCESS_WATCH_H_
#define WEFT_COORDINATOR_SHELL_PROCESS_WATCH_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace weft {

class ProcessWatch {
 public:
  ProcessWatch();
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  // Calls `ended` once the process has ended; at once, on the watch's thread, if it is gone already.
  void Watch(pid_t pid, std::function<void()> ended);

 private:
  void Run();
  std::function<void()> Take(int descriptor);

  const int epoll_, stop_;
  Mutex mu_;
  std::map<int, std::function<void()>> watched_ ABSL_GUARDED_BY(mu_);  // by descriptor
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_PROCESS_WATCH_H_
