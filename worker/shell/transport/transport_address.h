// The opaque bytes by which a UCX transport is reached: who it is, in which process, with which device, and
// how UCX gets there.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_ADDRESS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_ADDRESS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/shell/transport/peer_process.h"
#include "worker/shell/transport/transport_message.h"

namespace weft {

// The device whose memory a transport takes tensors in; kind "": none.
struct DeviceIdentity {
  std::string kind;  // "cuda"
  std::string uuid;  // of the hardware, as its vendor tells it
  friend bool operator==(const DeviceIdentity&, const DeviceIdentity&) = default;
};

struct TransportAddress {
  uint64_t sender =
      0;  // random: tells this transport from every other one, also from an earlier one of the process
  ProcessIdentity process;
  SegmentRef probe;  // one page: who can map it can read this process's memory in place
  std::string ucx;
  DeviceIdentity device;
};

// Random: no two transports have the same.
uint64_t NewSenderNumber();

std::string EncodeAddress(const TransportAddress& address);
// InvalidArgument if the bytes are not an address of this format.
absl::StatusOr<TransportAddress> DecodeAddress(absl::string_view bytes);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TRANSPORT_ADDRESS_H_
