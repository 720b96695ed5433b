#include "coordinator/shell/daemon_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "coordinator/store/etcd_store.h"
#include "coordinator/store/sqlite_store.h"

namespace weft {
namespace {

constexpr int64_t kStandByNs = 200'000'000;  // between two tries to lead

// Logs what the coordinator waits for, once for each cause.
class StandByLog {
 public:
  explicit StandByLog(const DaemonLog* log) : log_(log) {}
  void Say(const std::string& line) {
    if (std::exchange(last_, line) != line) log_->Info(line);
  }

 private:
  const DaemonLog* const log_;
  std::string last_;
};

// Stands by until this coordinator leads.
absl::StatusOr<std::shared_ptr<const EtcdLeadership>> AwaitLeadership(EtcdClient* client,
                                                                      const EtcdPlace& place,
                                                                      const DaemonStoreOptions& options) {
  EtcdLeadershipOptions leading;
  leading.key = place.leader_key();
  leading.name = options.name;
  leading.lost = [failed = options.failed] {
    failed(absl::AbortedError("its lease in etcd is gone, so another coordinator may lead"));
  };
  StandByLog log(options.log);
  while (true) {
    std::string leader;
    auto leadership = EtcdLeadership::Try(client, leading, &leader);
    if (leadership.ok() && *leadership != nullptr) return *std::move(leadership);
    if (!leadership.ok() && !MayLeadLater(leadership.status())) return leadership.status();
    log.Say(leadership.ok() ? absl::StrCat("standing by; ", leader, " leads")
                            : absl::StrCat("standing by; ", leadership.status().message()));
    if (!options.stand_by(kStandByNs)) return absl::CancelledError("it was stopped while it stood by");
  }
}

absl::Status CheckEtcdTls(const EtcdPlace& place, const DaemonStoreOptions& options) {
  for (const Address& endpoint : place.endpoints) {
    if (endpoint.loopback() || !options.tls.empty() || options.insecure) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "refusing to keep runs in etcd at ", endpoint.text(),
        ": without TLS, whoever is on the way could change them. Pass --store-tls DIR with ca.crt, etcd's "
        "authority, and tls.crt and tls.key if etcd wants a certificate. On a network that you trust, "
        "--store-insecure does without"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(const DaemonStoreOptions& options, int64_t shift) {
  const absl::StatusOr<EtcdPlace> place = ParseEtcdPlace(options.place);
  if (!place.ok()) return place.status();
  if (absl::Status safe = CheckEtcdTls(*place, options); !safe.ok()) return safe;
  absl::StatusOr<std::shared_ptr<EtcdClient>> client = EtcdClient::Make(place->endpoints, options.tls);
  if (!client.ok()) return client.status();
  auto leadership = AwaitLeadership(client->get(), *place, options);
  if (!leadership.ok()) return leadership.status();
  return MakeEtcdStore(*std::move(client), *std::move(leadership), place->prefix, shift);
}

absl::StatusOr<std::unique_ptr<Store>> OpenStore(const DaemonStoreOptions& options, int64_t shift) {
  if (IsEtcdPlace(options.place)) return OpenEtcdStore(options, shift);
  SqliteStoreOptions sqlite;
  sqlite.folder = options.place;
  sqlite.unix_minus_monotonic_ns = shift;
  return OpenSqliteStore(sqlite);
}

}  // namespace

absl::StatusOr<DaemonStore> OpenDaemonStore(const DaemonStoreOptions& options) {
  DaemonStore opened;
  opened.unix_minus_monotonic_ns = UnixMinusMonotonic();
  if (options.place.empty()) {
    options.log->Warning(
        "runs are kept in memory: a coordinator that is started again does not know them; --store DIR keeps "
        "them on the disk");
    return opened;
  }
  opened.takes_over = IsEtcdPlace(options.place);
  auto store = OpenStore(options, opened.unix_minus_monotonic_ns);
  if (!store.ok()) return store.status();
  absl::StatusOr<StoredState> stored = (*store)->Load();
  if (!stored.ok()) return stored.status();
  opened.stored = *std::move(stored);
  StoreWriterOptions writing;
  writing.log = [log = options.log](const std::string& line) { log->Warning(line); };
  writing.failed = options.failed;
  writing.metrics = options.metrics;
  opened.writer = std::make_unique<StoreWriter>(*std::move(store), std::move(writing));
  options.log->Info(absl::StrCat("runs are kept in ", options.place));
  return opened;
}

}  // namespace weft
