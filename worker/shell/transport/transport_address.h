// Encodes the opaque bytes by which a UCX transport is reached: its identity, its process, its device, and
// the address of its messenger.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_ADDRESS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_ADDRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/shell/transport/peer_process.h"
#include "worker/shell/transport/transport_message.h"

namespace weft {

// The device in whose memory a transport takes tensors; kind "": none.
struct DeviceIdentity {
  std::string kind;  // "cuda"
  std::string uuid;  // uuid of the hardware, as its vendor gives it
  friend bool operator==(const DeviceIdentity&, const DeviceIdentity&) = default;
};

inline constexpr char kUcxPlane[] = "ucx", kTlsPlane[] = "tls";

struct TransportAddress {
  // Random number that tells this transport from every other one, also from an earlier one of the process.
  uint64_t sender = 0;
  ProcessIdentity process;
  SegmentRef probe;       // one page: a process that can map it can read this process's memory in place
  std::string messenger;  // Messenger::address()
  DeviceIdentity device;
  // Addresses from which its TCP connections come (peer_filter.h); none if it has no TCP.
  std::vector<std::string> sources;
  std::string plane;  // network to other machines: kUcxPlane or kTlsPlane
};

// Returns a random number: no two transports have the same.
uint64_t NewSenderNumber();

std::string EncodeAddress(const TransportAddress& address);
// Decodes an address. InvalidArgument if the bytes are not an address of this format.
absl::StatusOr<TransportAddress> DecodeAddress(absl::string_view bytes);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_ADDRESS_H_
