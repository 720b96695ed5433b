// Holds lines of the log of a run: what its worker processes and its coordinator say about it, in one order.
//
// A worker sends lines of its own log while it serves the run, and the coordinator adds its own. RunLog keeps
// the last of them for `weft logs`; the run's folder has all, up to a bound (coordinator/record/log_file.h).
// Pure.
#ifndef WEFT_PROTO_SESSION_RUN_LOG_H_
#define WEFT_PROTO_SESSION_RUN_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/event_line.h"
#include "schedules/job.h"

namespace weft {

struct LogEntry {
  LogSeverity severity = LogSeverity::kInfo;
  int64_t unix_ns = 0;  // wall clock of the machine that wrote it
  std::string text;

  friend bool operator==(const LogEntry&, const LogEntry&) = default;
};

struct RunLogLine {
  uint64_t run = 0;
  uint64_t number = 0;      // place in the run's log, from 1; the coordinator gives it
  int32_t process = -1;     // number of the worker process that wrote it; -1 for the coordinator
  std::string writer;       // "coordinator", or the process's label
  std::vector<Rank> ranks;  // ranks of the process when it wrote the line
  LogEntry entry;
  // True for what comes again and again, as checkpoints: of several in a row only the last is an event. Not
  // on the wire.
  bool routine = false;

  friend bool operator==(const RunLogLine&, const RunLogLine&) = default;
};

// Returns true for a line of the coordinator, and for one of a process that has the rank; for every line if
// the rank is -1.
bool Concerns(const RunLogLine& line, Rank rank);

// Returns "2026-11-22T14:20:11.123Z warning process 1 (worker-b, pid 4711 on host b): ..", without an end.
std::string RunLogText(const RunLogLine& line);

// A part of a run's log.
struct RunLogPart {
  std::vector<RunLogLine> lines;
  uint64_t last = 0;     // number up to which it reaches, whatever of that it leaves out
  uint64_t dropped = 0;  // lines behind the asked number that are not kept any more
  bool more = false;     // further lines follow at once
  bool ended = false;    // the run has ended: no lines follow but late ones of workers
};

// The last lines of one run.
class RunLog {
 public:
  static constexpr size_t kMostLines = 2000;
  static constexpr size_t kMostBytes = size_t{1} << 20;    // of texts
  static constexpr size_t kPartBytes = size_t{256} << 10;  // likewise, of a part
  static constexpr size_t kMostEvents = 64;

  // Numbers the line and keeps it. Returns it as it is kept.
  const RunLogLine& Add(RunLogLine line);
  // Returns lines behind that of the number, as many as a part may have. `ended` is the caller's to say.
  RunLogPart After(uint64_t number, Rank rank = -1) const;
  // Returns the last lines of the coordinator, which those of workers do not push out.
  RunLogPart Events() const;

 private:
  std::deque<RunLogLine> lines_;
  std::deque<RunLogLine> events_;  // the last lines of the coordinator
  size_t bytes_ = 0;
  uint64_t last_ = 0;
};

// Admits some lines at once, and then some a second, so that a process in trouble floods nobody.
class LogRate {
 public:
  static constexpr int kBurst = 40, kPerSecond = 4;

  // Returns true if a line may go now. `now_ns` is of any clock that does not go back.
  bool Admit(int64_t now_ns);
  // Returns how many lines were refused since the last call.
  int64_t TakeRefused();

 private:
  double tokens_ = kBurst;
  int64_t at_ns_ = 0;
  int64_t refused_ = 0;
};

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_RUN_LOG_H_
