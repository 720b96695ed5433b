// Takes what a daemon may change of its settings while it serves: the least grave of what it logs, and
// limits.
#ifndef WEFT_BASE_SETTINGS_RELOAD_H_
#define WEFT_BASE_SETTINGS_RELOAD_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/log/daemon_log.h"
#include "base/settings/settings.h"

namespace weft {

// Settings of a daemon that can change while it serves.
struct Reloadable {
  std::string watched;              // what is taken without being asked, as "certificates"
  std::vector<std::string> limits;  // settings that the caller takes, by name
};

// Sets the level of the log to that of `now`, and logs what was taken and which other settings wait for the
// next start. Returns true if the caller is to take the limits; where `read` is an error the settings stay,
// and the log has its message.
bool Reload(const absl::Status& read, const std::vector<Setting>& now, const std::vector<Setting>& at_start,
            const Reloadable& what, DaemonLog* log);

// Remembers whether the configuration was taken when it was read last, and when it was taken last. Begins
// with the start of the daemon, which has taken one. Thread-safe.
class LastReload {
 public:
  LastReload() { Note(true); }

  void Note(bool taken);
  bool taken() const { return taken_; }
  double taken_unix_seconds() const { return taken_unix_seconds_; }

 private:
  std::atomic<bool> taken_{true};
  std::atomic<double> taken_unix_seconds_{0};
};

}  // namespace weft

#endif  // WEFT_BASE_SETTINGS_RELOAD_H_
