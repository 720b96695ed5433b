// Declares the conformance suite of transports: two of them in one process, connected, and tensors of the
// host or of a device between them. Its tests are in transport_{moving,wants,ends}_test.cc; real processes
// are in transport_process_test.cc.
//
// A tensor of a device goes as a worker would send it: as such where the transport carries it, else through
// host memory, which the suite does itself (Offer, Holds).
#ifndef WEFT_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_
#define WEFT_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/conformance/device_memory.h"
#include "tests/conformance/transport_fixture.h"
#include "worker/shell/transport/loopback_transport.h"
#include "worker/shell/transport/transport.h"

namespace weft::testing {

inline constexpr PeerId kProducer = 1, kConsumer = 2;
inline constexpr char kProducerLabel[] = "process 1 (pid 11 on host a)";
inline constexpr char kConsumerLabel[] = "process 2 (pid 22 on host a)";

struct TransportCase {
  std::string name;
  bool in_place = false;  // large tensors are read where the producer, or its staging, left them
  std::string device;     // kind of TestDevice whose tensors are moved; "": the host's
  bool carried = false;   // the transport takes them as they are
  std::function<std::unique_ptr<Transport>(LoopbackNetwork&, TestDevice*)> create;
};

inline void PrintTo(const TransportCase& c, std::ostream* out) { *out << c.name; }

class TransportConformance : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override;
  void Connect();

  void Pump();
  // Generous, because it only bounds a failing test.
  bool PumpUntil(const std::function<bool()>& done, Nanos limit = 60 * kSecond);
  void PumpFor(Nanos time);
  bool PumpUntilEvents(size_t n);
  // Pumps until the producer has handled every small message that the consumer has sent: they stay in order.
  void Settle();

  // Makes a tensor in memory of this case's place; counts into `released` when the transport, and the test,
  // let go of it.
  Tensor Make(const std::unique_ptr<Transport>& owner, size_t bytes, uint32_t seed, int* released = nullptr);
  void Fill(const Tensor& tensor, size_t offset, size_t bytes, uint32_t seed);
  void Offer(const std::unique_ptr<Transport>& from, PeerId to, const TensorKey& key, Tensor tensor);
  // Returns true if the arrived tensor has the bytes, on the device where this case has one.
  bool Holds(const Tensor& tensor, uint32_t seed);
  // Moves one tensor; returns the arrived one.
  std::optional<Tensor> Transfer(const TensorKey& key, Tensor tensor);

  int settled_ = 0;
  std::unique_ptr<TestDevice> device_;  // null: the host
  LoopbackNetwork network_;
  std::unique_ptr<Transport> producer_, consumer_;
  std::vector<TransportEvent> producer_events_, consumer_events_;
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_
