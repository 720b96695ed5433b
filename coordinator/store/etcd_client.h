// Speaks with an etcd cluster: reads keys, changes keys under a condition, holds leases. The one place that
// knows etcd's API (proto/etcd/etcd.proto).
//
// Each call takes at most a few seconds. Failure: Unavailable means that nobody knows whether a change was
// made; ResourceExhausted that etcd has no room and nothing was changed; every sentence names the endpoints.
// Threads: any.
#ifndef WEFT_COORDINATOR_STORE_ETCD_CLIENT_H_
#define WEFT_COORDINATOR_STORE_ETCD_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/address.h"

namespace weft {

// etcd refuses larger transactions in its default configuration.
inline constexpr int kMaxEtcdChanges = 128;
inline constexpr size_t kMaxEtcdBytes = 1 << 20;  // of 1.5 MiB, with room for keys and framing

struct EtcdKey {
  std::string key, value;
  int64_t create_revision = 0;  // identity of the key between its making and its removal; 0: it is not there
};

// A key as it must be for a change to be made.
struct EtcdCondition {
  std::string key;
  int64_t create_revision = 0;
};

// Puts a value, or removes the keys from `key` up to, not with, `end`.
struct EtcdChange {
  std::string key, value, end;
  int64_t lease = 0;  // with which the key goes; 0 for none
};

class EtcdClient {
 public:
  virtual ~EtcdClient() = default;

  // Does not wait for a connection. `tls` is a folder of certificates
  // (base/certificates/certificate_folder.h), or "" for none; without tls.crt and tls.key in it, etcd gets no
  // certificate. FailedPrecondition: the certificates are wrong.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Make(const std::vector<Address>& endpoints,
                                                          const std::string& tls = "");

  // Returns the keys that begin with `prefix`, in their order, as they were at one moment.
  virtual absl::StatusOr<std::vector<EtcdKey>> ReadAll(const std::string& prefix) = 0;
  // Returns one key; one that is not there has the revision 0.
  virtual absl::StatusOr<EtcdKey> Read(const std::string& key) = 0;
  // Makes all changes if the condition holds. Returns the revision of the change; 0 if it does not hold.
  virtual absl::StatusOr<int64_t> ChangeIf(const EtcdCondition& condition,
                                           const std::vector<EtcdChange>& changes) = 0;

  virtual absl::StatusOr<int64_t> GrantLease(int seconds) = 0;
  // Renews a lease. Returns false if it is gone.
  virtual absl::StatusOr<bool> KeepAlive(int64_t lease) = 0;
  virtual absl::Status Revoke(int64_t lease) = 0;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_ETCD_CLIENT_H_
