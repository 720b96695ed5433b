// Exchanges messages over TLS 1.3 and TCP, between workers that have certificates: what arrives is from a
// worker of the same authority and unchanged, and nobody else reads it.
//
// Each link is a TCP connection of its own, in one direction (tls_sender.h, tls_receiver.h). A connection
// that has not ended its handshake within seconds is closed, and there are few of those at a time, so
// strangers cost little and reach nothing. Its listening sockets stay whatever happens (base/net/listener.h).
//
// The address is text, as "10.0.0.1:40001,10.1.0.1:40002". A link goes to the one of them that has the most
// leading bits in common with an own address: the one in the same network.
//
// The rest is as in messenger.h.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TLS_MESSENGER_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TLS_MESSENGER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/net/port_range.h"
#include "worker/shell/transport/messenger.h"
#include "worker/shell/transport/tls_sender.h"

namespace weft {

struct TlsNetwork {
  std::string certificates;  // folder of certificates, as for --tls
  // Interfaces by which peers reach this process, as "eth0,eth1"; "all" for every one that is up, but
  // loopback. Empty: there is no such network.
  std::string interfaces;
  PortRange ports;
  TrustsPeer trusts;
  // The time after which the kernel gives a silent connection up, in nanoseconds.
  int64_t timeout_ns = 150'000'000'000;
  // Gets a line, without its end, about a connection that was refused, and about certificates. May be null.
  std::function<void(const std::string& line)> log;
};

// Returns the numeric addresses that the interfaces have now, without those of IPv6 that need a scope.
std::vector<std::string> AddressesOfInterfaces(const std::string& interfaces);

// Creates a messenger. `handler` outlives it. FailedPrecondition for certificates that are wrong (exit code
// 78 of the daemons); Unavailable if the interfaces have no address, or none on which one can listen.
absl::StatusOr<std::unique_ptr<Messenger>> CreateTlsMessenger(const TlsNetwork& network,
                                                              Messenger::Handler* handler);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TLS_MESSENGER_H_
