#include "base/log/daemon_log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"

namespace weft {
namespace {

constexpr int kPatienceMs = 100;  // for the rest of a line that has begun

// Writes as much as standard error takes at once. Returns the number of bytes. A pipe that is writable has
// room for PIPE_BUF of them.
size_t WriteWithoutWaiting(absl::string_view text) {
  size_t done = 0;
  while (done < text.size()) {
    pollfd out{STDERR_FILENO, POLLOUT, 0};
    if (poll(&out, 1, done == 0 ? 0 : kPatienceMs) != 1 || (out.revents & POLLOUT) == 0) break;
    const ssize_t n =
        write(STDERR_FILENO, text.data() + done, std::min<size_t>(text.size() - done, PIPE_BUF));
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

}  // namespace

void DaemonLog::SetListener(const void* source, Listener listener) {
  MutexLock lock(mu_);
  if (listener) {
    listeners_[source] = std::move(listener);
  } else {
    listeners_.erase(source);
  }
}

void DaemonLog::Write(LogSeverity severity, absl::string_view text, const void* source) const {
  ++events_[static_cast<int>(severity)];
  if (ring_ != nullptr) {
    ring_->Note(MonotonicNow(),
                EventText("log").AddWord("level", LogSeverityName(severity)).AddText("msg", text));
  }
  {
    MutexLock lock(mu_);
    for (const auto& [heard, listener] : listeners_) {
      if (source == nullptr || source == heard) listener(severity, text);
    }
  }
  if (severity > least_) return;
  const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  MutexLock lock(out_);
  if (lost_ > 0) {
    const std::string words = absl::StrCat(lost_, " lines are lost: nobody read standard error");
    const std::string told = LogLine(format_, now, LogSeverity::kWarning, program_, words);
    lost_ = Put(is_cut_ ? "\n" + told : told) ? 0 : lost_ + 1;
    if (lost_ > 0) return;
  }
  if (!Put(LogLine(format_, now, severity, program_, text))) ++lost_;
}

bool DaemonLog::Put(absl::string_view line) const {
  const size_t done = WriteWithoutWaiting(line);
  if (done > 0) is_cut_ = done < line.size();
  return done == line.size();
}

}  // namespace weft
