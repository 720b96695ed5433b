// Makes one of several coordinators the leader, by a key of etcd that goes with a lease.
//
// The leader renews its lease; when its process ends, or cannot reach etcd for as long as the lease lasts,
// the key goes and another coordinator can make it anew. The key's create revision is the leader's fencing
// token: the store makes each change only while the key still has it (etcd_store.h), so a former leader that
// has not noticed yet changes nothing.
//
// Threads: a thread of its own renews the lease and calls `lost`, once. Ownership: the client outlives it.
#ifndef WEFT_COORDINATOR_STORE_ETCD_LEADERSHIP_H_
#define WEFT_COORDINATOR_STORE_ETCD_LEADERSHIP_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/store/etcd_client.h"

namespace weft {

struct EtcdLeadershipOptions {
  std::string key;
  std::string name;  // of this coordinator, for others to tell
  int lease_seconds = 5;
  std::function<void()> lost;  // the lease is gone
};

class EtcdLeadership {
 public:
  virtual ~EtcdLeadership() = default;  // gives it up, so that another coordinator need not wait

  // Tries once to become the leader. Returns null if another one is, and its name in `leader`.
  static absl::StatusOr<std::unique_ptr<EtcdLeadership>> Try(EtcdClient* client,
                                                             const EtcdLeadershipOptions& options,
                                                             std::string* leader);

  // Returns the condition that holds as long as this coordinator is the leader.
  virtual const EtcdCondition& token() const = 0;
};

// Returns true if a coordinator whose Try has failed so may lead later, without a change of what it was told:
// etcd is away, or has no room.
bool MayLeadLater(const absl::Status& failure);

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_ETCD_LEADERSHIP_H_
