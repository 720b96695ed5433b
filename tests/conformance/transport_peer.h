// Holds what transport_peer and the test that starts it agree on.
#ifndef WEFT_TESTS_CONFORMANCE_TRANSPORT_PEER_H_
#define WEFT_TESTS_CONFORMANCE_TRANSPORT_PEER_H_

#include "tests/conformance/device_memory.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft::testing {

inline constexpr int kStopStep = 1'000'000;

// Returns the environment's options, for tensors of that device; null for none.
inline UcxOptions OptionsWith(TestDevice* device) {
  UcxOptions options = UcxOptionsFromEnvironment();
  if (device == nullptr) return options;
  options.device_memory = &device->memory();
  options.device_kind = device->kind();
  options.device_uuid = device->uuid();
  return options;
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_TRANSPORT_PEER_H_
