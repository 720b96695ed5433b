// Takes what a daemon may change of its settings while it serves: the least grave of what it logs.
#ifndef WEFT_BASE_SETTINGS_RELOAD_H_
#define WEFT_BASE_SETTINGS_RELOAD_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/log/daemon_log.h"
#include "base/settings/settings.h"

namespace weft {

// Sets the level of the log to that of `now`, and logs what was taken and which other settings wait for the
// next start. Where `read` is an error the settings stay, and the log has its message. `watched` names what
// is taken without being asked, as "certificates".
void Reload(const absl::Status& read, const std::vector<Setting>& now, const std::vector<Setting>& at_start,
            absl::string_view watched, DaemonLog* log);

}  // namespace weft

#endif  // WEFT_BASE_SETTINGS_RELOAD_H_
