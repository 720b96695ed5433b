// Writes the log of a daemon: one line an event on standard error, with the time, a severity and the
// program's name (log_format.h).
//
// A line is written at once and whole.
//
// A daemon never waits for the reader of its log, who may have stopped: it may hold locks that all else
// needs. Lines for which a full pipe has no room are lost, and the next one that is written says how many.
// Only a line of more than PIPE_BUF bytes may wait, for 100 ms, and is cut then.
//
// Every event, whatever its severity, is noted in a flight ring too, if there is one.
//
// Thread-safe.
#ifndef WEFT_BASE_LOG_DAEMON_LOG_H_
#define WEFT_BASE_LOG_DAEMON_LOG_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/event_line.h"
#include "base/log/flight_ring.h"
#include "base/log/log_format.h"
#include "base/mutex.h"

namespace weft {

class DaemonLog {
 public:
  // Writes events that are at least as grave as `least`. `ring`, which may be null, outlives the log.
  DaemonLog(std::string program, LogSeverity least, LogFormat format = LogFormat::kText,
            FlightRing* ring = nullptr)
      : program_(std::move(program)), format_(format), ring_(ring), least_(least) {}

  // Writes events that are at least as grave as `least` from now on.
  void SetLevel(LogSeverity least) { least_ = least; }

  // Passes each event of `source`, and of none, to `listener` too, whatever its severity, on the thread that
  // writes it; null for nobody any more, once calls in progress have returned. A listener logs nothing
  // itself.
  using Listener = std::function<void(LogSeverity severity, absl::string_view text)>;
  void SetListener(const void* source, Listener listener) ABSL_LOCKS_EXCLUDED(mu_);

  void Info(absl::string_view text) const { Write(LogSeverity::kInfo, text); }
  void Warning(absl::string_view text) const { Write(LogSeverity::kWarning, text); }
  void Error(absl::string_view text) const { Write(LogSeverity::kError, text); }

  // `source`: what the event belongs to; null: the whole program.
  void Write(LogSeverity severity, absl::string_view text, const void* source = nullptr) const;

  // Returns how many events of that severity there have been, written or not.
  uint64_t events(LogSeverity severity) const { return events_[static_cast<int>(severity)]; }

 private:
  // Returns false for a line that standard error did not take whole.
  bool Put(absl::string_view line) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(out_);

  const std::string program_;
  const LogFormat format_;
  FlightRing* const ring_;
  std::atomic<LogSeverity> least_;
  mutable std::array<std::atomic<uint64_t>, kLogSeverities> events_{};
  mutable Mutex mu_;
  std::map<const void*, Listener> listeners_ ABSL_GUARDED_BY(mu_);  // by source
  mutable Mutex out_;
  mutable int64_t lost_ ABSL_GUARDED_BY(out_) = 0;     // lines since the last one that was written
  mutable bool is_cut_ ABSL_GUARDED_BY(out_) = false;  // the last one has no end
};

}  // namespace weft

#endif  // WEFT_BASE_LOG_DAEMON_LOG_H_
