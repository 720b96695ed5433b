// Tells the service manager that started a daemon how it is: ready, what it does, that it stops, that it
// lives.
//
// A unit of systemd with Type=notify counts as started when its process says that it is ready, and one with
// WatchdogSec= is killed and started again when its process says nothing for that long. The protocol is
// systemd's: one datagram of lines KEY=VALUE to the socket that $NOTIFY_SOCKET names, a path or @NAME of the
// abstract namespace; $WATCHDOG_USEC is the silence after which the watchdog acts. Podman and others speak it
// too. Without these variables nothing is sent.
//
// Thread-safe, but for Watch and the destructor. Watch starts a thread of its own, which the destructor ends.
// Failure: a notice that cannot be sent is dropped; then the manager's time-outs decide.
#ifndef WEFT_BASE_SERVICE_SERVICE_NOTICES_H_
#define WEFT_BASE_SERVICE_SERVICE_NOTICES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace weft {

class ServiceNotices {
 public:
  // The place and the rhythm of notices, as the environment gives them.
  struct Manager {
    std::string socket;       // $NOTIFY_SOCKET; "" for none
    int64_t watchdog_ns = 0;  // $WATCHDOG_USEC, where it is meant for this process; 0 for none
  };

  // Reads the variables and removes them, so that no child process speaks for this one. Call before any
  // thread starts. InvalidArgument, naming variable and value, for what is no path and no number.
  static absl::StatusOr<Manager> TakeFromEnvironment();

  explicit ServiceNotices(Manager manager);
  ServiceNotices(const ServiceNotices&) = delete;
  ServiceNotices& operator=(const ServiceNotices&) = delete;
  ~ServiceNotices();

  // Says that the daemon still starts, and what it does: the manager waits for another minute from now on,
  // whatever its time-out. Call every few seconds.
  void Starting(absl::string_view status) const { Send("EXTEND_TIMEOUT_USEC=60000000", status); }
  // Says that the daemon serves; `status` is what the manager shows beside it, as "listening
  // on 10.0.0.1:7070".
  void Ready(absl::string_view status) { Send("READY=1", status); }
  // Says that the daemon takes its configuration anew; Ready follows.
  void Reloading();
  // Says that the daemon stops, and why.
  void Stopping(absl::string_view reason) { Send("STOPPING=1", reason); }

  // Pings the watchdog twice in its time, for as long as `problem` returns "": a daemon whose loop hangs is
  // silent, and started again. `problem` is called from a thread of its own. Call at most once.
  void Watch(std::function<std::string()> problem);

 private:
  void Send(absl::string_view assignment, absl::string_view status) const;

  const Manager manager_;
  int socket_ = -1;    // -1 where there is no manager
  Notification ends_;  // ends the thread
  std::thread pinger_;
};

}  // namespace weft

#endif  // WEFT_BASE_SERVICE_SERVICE_NOTICES_H_
