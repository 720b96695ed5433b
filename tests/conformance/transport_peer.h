// What transport_peer and the test that starts it agree on.
#ifndef WEFT_TESTS_CONFORMANCE_TRANSPORT_PEER_H_
#define WEFT_TESTS_CONFORMANCE_TRANSPORT_PEER_H_

namespace weft::testing {

inline constexpr int kStopStep = 1'000'000;

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_TRANSPORT_PEER_H_
