// Holds what transport_peer and the test that starts it agree on.
#ifndef WEFT_TESTS_CONFORMANCE_TRANSPORT_PEER_H_
#define WEFT_TESTS_CONFORMANCE_TRANSPORT_PEER_H_

#include <cstdlib>

#include "tests/conformance/device_memory.h"
#include "tests/conformance/worker_certificates.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft::testing {

inline constexpr int kStopStep = 1'000'000;
// The variable that has both use TLS, with the certificates of that folder.
inline constexpr char kTlsVariable[] = "WEFT_TEST_TLS";

// Returns the environment's options, for tensors of that device; null for none.
inline UcxOptions OptionsWith(TestDevice* device) {
  UcxOptions options = UcxOptionsFromEnvironment();
  if (const char* certificates = std::getenv(kTlsVariable)) {
    options.tls_network = LoopbackNetworkWith(certificates);
    options.shared_memory = false;
    options.in_place = false;
  }
  if (device == nullptr) return options;
  options.device_memory = &device->memory();
  options.device_kind = device->kind();
  options.device_uuid = device->uuid();
  return options;
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_TRANSPORT_PEER_H_
