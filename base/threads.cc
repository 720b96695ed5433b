#include "base/threads.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace weft {

absl::Status NoThread(absl::string_view cause) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no thread can be started (", cause,
                   "): raise the limit of processes and threads (ulimit -u, pids.max)"));
}

absl::StatusOr<std::thread> TryStartThread(std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& e) {
    return NoThread(e.code().message());
  }
}

std::thread StartThread(std::function<void()> work) {
  constexpr int kTryAgain = 75;
  absl::StatusOr<std::thread> thread = TryStartThread(std::move(work));
  if (thread.ok()) return *std::move(thread);
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
               std::string(thread.status().message()).c_str());
  _exit(kTryAgain);
}

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

absl::Status CheckThreads(int count) {
  Notification over;
  std::vector<std::thread> threads;
  absl::Status status;
  while (status.ok() && static_cast<int>(threads.size()) < count) {
    absl::StatusOr<std::thread> thread = TryStartThread([&over] { over.Wait(); });
    status = thread.status();
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  over.Notify();
  for (std::thread& thread : threads) thread.join();
  if (status.ok()) return status;
  return absl::ResourceExhaustedError(absl::StrCat(status.message(), "; this program needs ", count,
                                                   " besides its first one, and there are ", threads.size()));
}

}  // namespace weft
