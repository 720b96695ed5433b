// Opens the store of the daemon: an SQLite file, or etcd, where the daemon stands by until it leads.
//
// Failure: as OpenSqliteStore and EtcdStore. A store that fails later, or a lease that is lost, ends the
// process at once: nothing that rests on what was to be stored has been said, and the next start looks at the
// store.
#ifndef WEFT_COORDINATOR_SHELL_DAEMON_STORE_H_
#define WEFT_COORDINATOR_SHELL_DAEMON_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/log/daemon_log.h"
#include "base/metrics/metrics.h"
#include "coordinator/store/store_writer.h"

namespace weft {

struct DaemonStore {
  std::unique_ptr<StoreWriter> writer;  // null for none
  int64_t unix_minus_monotonic_ns = 0;
  StoredState stored;  // at the start
  // True if a former leader may still live, fenced, with the output folders of its runs open.
  bool takes_over = false;
};

struct DaemonStoreOptions {
  std::string place;      // a folder, or etcd://..; "" for none
  std::string name;       // of this coordinator, for others to tell
  std::string tls;        // certificates for etcd; "" for none
  bool insecure = false;  // allows etcd on another machine without TLS
  // Waits for the time, in which the process stands by. Returns false if it is to end.
  std::function<bool(int64_t ns)> stand_by;
  // Ends the process: the store cannot be written, or another coordinator leads.
  std::function<void(const absl::Status&)> failed;
  const DaemonLog* log = nullptr;
  Metrics* metrics = nullptr;  // outlives the store
};

// Returns Cancelled if `stand_by` returned false.
absl::StatusOr<DaemonStore> OpenDaemonStore(const DaemonStoreOptions& options);

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_DAEMON_STORE_H_
