// Stores records in etcd, for coordinators of which one leads and others stand by.
//
//   PREFIX/leader              the leader's name, with its lease (etcd_leadership.h)
//   PREFIX/head                the largest epoch and run number
//   PREFIX/run/N/KIND/STEP     a row (row_changes.h), with its checksum in front
//
// Each change is a transaction that compares the leader's key, so a coordinator that leads no more stores
// nothing. A batch that is too large for one transaction becomes several. Behind a crash between them, the
// first of the batch's changes are there, in such an order that the invariants of records.h hold.
//
// etcd keeps every version of a key until it is compacted. Its own option --auto-compaction-retention must do
// that.
//
// Failure, beyond store.h's: Aborted if another coordinator leads; Unavailable if etcd does not answer for
// half a minute. A change whose answer is lost is made again, which changes nothing more.
#ifndef WEFT_COORDINATOR_STORE_ETCD_STORE_H_
#define WEFT_COORDINATOR_STORE_ETCD_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/net/address.h"
#include "coordinator/store/etcd_client.h"
#include "coordinator/store/etcd_leadership.h"
#include "coordinator/store/store.h"

namespace weft {

// The place of a store: etcd://HOST:PORT[,HOST:PORT..][/PREFIX].
struct EtcdPlace {
  std::vector<Address> endpoints;
  std::string prefix = "weft";

  std::string leader_key() const { return prefix + "/leader"; }
};

// Returns true for a text that begins with etcd://.
bool IsEtcdPlace(absl::string_view text);
// Returns InvalidArgument with the form.
absl::StatusOr<EtcdPlace> ParseEtcdPlace(absl::string_view text);

std::unique_ptr<Store> MakeEtcdStore(std::shared_ptr<EtcdClient> client,
                                     std::shared_ptr<const EtcdLeadership> leadership,
                                     const std::string& prefix, int64_t unix_minus_monotonic_ns);

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_ETCD_STORE_H_
