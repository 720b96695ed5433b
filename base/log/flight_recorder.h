// Writes the last events of a daemon (flight_ring.h) into a file: when it stalls, when a fatal signal ends
// it, and at SIGUSR1, after which it goes on.
//
// The file is FOLDER/flight-PROGRAM-HOST-PID-CAUSE.log, where CAUSE is `stall`, `SIGUSR1` or the name of the
// fatal signal. A later dump of the same process and cause replaces it; of other files of the program the
// newest kKept stay. flight_dump.h has its form. The log of the daemon says where it is. A fatal signal's
// line goes to standard error by itself, since the log is not safe in a handler.
//
// Fatal signals are SIGSEGV, SIGBUS, SIGABRT, SIGILL and SIGFPE. Their handler uses only what is safe there.
// Behind the dump it puts the handler of before in its place again and has the same signal delivered once
// more: so handlers of libraries run, and exit status and core dump stay as they were. A build with
// sanitizers leaves these signals to them. A thread that has overrun its stack leaves no dump, since the
// handler runs on it.
//
// Threads: constructed before other threads start, as SIGUSR1 is blocked in this thread and those that it
// starts later; at most one lives in a process. A thread of its own takes SIGUSR1, writes dumps and looks for
// problems. Stalled and DumpNow from any thread. Ownership: borrows the ring and the log. Failure: a folder
// that cannot be written is a warning in the log, at the start and at each dump, and nothing else.
#ifndef WEFT_BASE_LOG_FLIGHT_RECORDER_H_
#define WEFT_BASE_LOG_FLIGHT_RECORDER_H_

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/log/daemon_log.h"
#include "base/log/flight_ring.h"
#include "base/mutex.h"

namespace weft {

class FlightRecorder {
 public:
  static constexpr size_t kKept = 64;

  struct Options {
    std::string program, version;
    std::string folder;  // "" for FolderByDefault
  };

  FlightRecorder(const Options& options, FlightRing& ring, const DaemonLog& log);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Has a dump written because something does not get on, and returns at once. Call it when a stall
  // begins, not again while it lasts.
  void Stalled(absl::string_view why) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes such a dump before it returns, for a process that is about to end.
  void DumpNow(absl::string_view why) ABSL_LOCKS_EXCLUDED(writing_);
  // Asks every two seconds for a problem, "" for none, on the recorder's thread; a problem that two looks in
  // a row have found is a stall. Null ends that, once a call in progress has returned.
  void Watch(std::function<std::string()> problem) ABSL_LOCKS_EXCLUDED(watching_);

  FlightRing& ring() { return ring_; }
  // Returns how many dumps have been written.
  int64_t dumps() const { return dumps_; }

 private:
  static void OnFatalSignal(int signal, siginfo_t* info, void* context);
  void TakeFatalSignals();
  void DumpAtFatalSignal(int signal, const siginfo_t& info) const;

  void Run();
  void LookForProblem() ABSL_LOCKS_EXCLUDED(watching_);
  void Dump(absl::string_view cause, LogSeverity severity, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(writing_);
  // Writes the file of the cause, in place of an older one. Returns 0 or the errno. Safe in a signal handler.
  int WriteFile(const char* path, const EventText& head) const;
  void RemoveOldest() const;

  const std::string program_, folder_;
  const std::string prefix_;   // path of a dump, up to its cause
  const std::string process_;  // " program=.. version=.. host=.. pid=.."
  FlightRing& ring_;
  const DaemonLog& log_;

  std::atomic<int64_t> dumps_{0};
  Mutex writing_;  // while a dump is written, but for one at a fatal signal
  Mutex watching_;
  std::function<std::string()> problem_ ABSL_GUARDED_BY(watching_);
  int seen_ ABSL_GUARDED_BY(watching_) = 0;  // looks in a row that have found a problem
  Mutex mu_;
  std::optional<std::string> stall_ ABSL_GUARDED_BY(mu_);  // stall to be dumped, and why
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Returns the folder for dumps where none is set: the unit's folder for logs under systemd
// ($LOGS_DIRECTORY), else the one for temporary files ($TMPDIR, /tmp).
std::string FolderByDefault();

}  // namespace weft

#endif  // WEFT_BASE_LOG_FLIGHT_RECORDER_H_
