#include "base/log/daemon_log.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/plain_text.h"

namespace weft {
namespace {

constexpr size_t kMaxBytes = 64 << 10;

}  // namespace

std::string LogLine(int64_t unix_ms, LogSeverity severity, absl::string_view program,
                    absl::string_view text) {
  return EventLine(unix_ms, severity, program, PlainText(text, kMaxBytes)) + "\n";
}

void DaemonLog::SetListener(Listener listener) {
  MutexLock lock(mu_);
  listener_ = std::move(listener);
}

void DaemonLog::Write(LogSeverity severity, absl::string_view text) const {
  {
    MutexLock lock(mu_);
    if (listener_) listener_(severity, text);
  }
  if (severity > least_) return;
  const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  const std::string line = LogLine(now, severity, program_, text);
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n <= 0) return;  // nobody reads
    done += static_cast<size_t>(n);
  }
}

}  // namespace weft
