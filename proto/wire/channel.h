// Makes gRPC channels with their settings: the one place for keepalive, sizes and time-outs of both sides.
#ifndef WEFT_PROTO_WIRE_CHANNEL_H_
#define WEFT_PROTO_WIRE_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/address.h"
#include "base/net/security_flags.h"

namespace weft {

// Keepalive notices a dead or stopped peer 15 s after it last answered: a ping after 10 s, 5 s for its
// answer. gRPC's defaults never notice.
inline constexpr int kKeepaliveTimeMs = 10'000;
inline constexpr int kKeepaliveTimeoutMs = 5'000;

// Makes a channel to the first of the addresses that answers, of a server that is not Weft's: with TLS if
// there is a folder of certificates, and the server's must be for one of the hosts then. FailedPrecondition:
// the certificates are wrong.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenForeignChannel(const std::vector<Address>& addresses,
                                                                  const std::string& tls);
// Makes a channel to a coordinator, protected as the flags say. `complain` hears of new certificates that are
// not taken, on another thread. FailedPrecondition: an address needs TLS and there is none, or the
// certificates are wrong.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::vector<Address>& addresses,
                                                           const SecurityFlags& security,
                                                           std::function<void(const std::string&)> complain);
void ConfigureServer(grpc::ServerBuilder* builder);

absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

// Returns a gRPC deadline at a time of MonotonicNow; INT64_MAX: never.
gpr_timespec DeadlineAt(int64_t monotonic_ns);

}  // namespace weft

#endif  // WEFT_PROTO_WIRE_CHANNEL_H_
