// Serves one run at a time of those that a worker process has room for: a session with the coordinator, a
// transport and a loop.
//
// A process has as many slots as its --runs says. To the coordinator each is a worker with a name, an address
// and a session of its own, so runs are placed, fenced and recovered as if each had a process. The slots
// share the device and LibTorch, and the fate of the process: a job that kills it costs each of its runs an
// attempt.
//
// Invariants: a line of this slot's log goes to its own run's log alone. Threads: Serve is called once, on a
// thread of its own; Register before it, Close behind it; the others on any thread between. Ownership:
// borrows the device, the log and the flight recorder. Failure: Open says FailedPrecondition for settings
// that no other start cures.
#ifndef WEFT_WORKER_SHELL_RUN_SLOT_H_
#define WEFT_WORKER_SHELL_RUN_SLOT_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/event_line.h"
#include "base/log/daemon_log.h"
#include "base/log/flight_recorder.h"
#include "proto/session/messages.h"
#include "proto/wire/session_stream.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/session_link.h"
#include "worker/shell/loop/worker_loop.h"
#include "worker/shell/transport/transport.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {

class RunSlot {
 public:
  struct Options {
    Hello hello;  // what Register says, but for the address
    SessionStreamOptions session;
    UcxOptions transport;
    WorkerLoopOptions loop;
    bool renews = false;  // as in SessionLink
    FlightRecorder* recorder = nullptr;
  };
  static absl::StatusOr<std::unique_ptr<RunSlot>> Open(Options options, Device& device, DaemonLog& log);
  ~RunSlot();
  RunSlot(const RunSlot&) = delete;
  RunSlot& operator=(const RunSlot&) = delete;

  WorkerLoop& loop() { return *loop_; }
  SessionLink& link() { return *link_; }

  // Says to the coordinator that this worker is there.
  void Register();
  // Serves runs until told to stop (WorkerLoop::Run), then tells the coordinator goodbye. Ends the process
  // where the loop hangs.
  absl::Status Serve();
  // Returns true once Serve has come to its end.
  bool ended() const { return ended_; }
  // Returns true while it serves a run.
  bool serves() const { return !ended_ && link_->serves(); }
  // Returns the coordinator's reason to end this worker; "" for none, nullopt where it did not.
  std::optional<std::string> shutdown() const { return link_->shutdown(); }
  // Returns why no other run could be served (Transport::health).
  absl::Status health() const { return transport_->health(); }
  // Tells the peers goodbye.
  void Close();

 private:
  RunSlot(Options options, DaemonLog& log) : options_(std::move(options)), log_(log) {}
  absl::Status Start(Device& device);
  void Write(LogSeverity severity, const std::string& line) const { log_.Write(severity, line, this); }

  Options options_;
  DaemonLog& log_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<SessionLink> link_;
  std::unique_ptr<WorkerLoop> loop_;
  std::atomic<bool> ended_{false};
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_RUN_SLOT_H_
