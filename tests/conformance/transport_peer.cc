// The other process of transport_process_test: a producer that does as its arguments say until it is told to
// stop.
//
//   transport_peer PRODUCER_NUMBER CONSUMER_NUMBER BYTES COUNT DEVICE
//
// DEVICE: kind of the device (device_memory.h) whose memory the tensors lie in; "none" for the host.
//
// It prints its address (hex) as one line, reads the consumer's address (hex) from stdin, offers COUNT
// tensors of BYTES bytes, and waits for the notice kStopStep. Exit code 0 if everything that it offered came
// back. With a COUNT below 0 it sends small messages without end instead.
#include "tests/conformance/transport_peer.h"

#include <poll.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "tests/conformance/device_memory.h"
#include "tests/conformance/transport_fixture.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft::testing {
namespace {

// Asks for tensors and takes that back, until it is killed.
[[noreturn]] void Flood(Transport& transport, PeerId peer) {
  std::vector<TransportEvent> events;
  for (int i = 0;; i = (i + 1) % 1000) {
    transport.Want(peer, Key(i));
    transport.Cancel(Key(i));
    transport.Progress(MonotonicNow(), &events);
  }
}

int Run(PeerId self, PeerId consumer, size_t bytes, int count, const std::string& kind) {
  const std::unique_ptr<TestDevice> device = OpenDevice(kind);
  absl::StatusOr<std::unique_ptr<Transport>> created = CreateUcxTransport(OptionsWith(device.get()));
  if (!created.ok()) {
    std::cerr << created.status().ToString() << "\n";
    return 1;
  }
  Transport& transport = **created;
  std::cout << absl::BytesToHexString(transport.address()) << std::endl;
  std::string address;
  if (!std::getline(std::cin, address)) return 1;
  transport.BeginEpoch(kRun, 1);
  if (!transport.Connect(consumer, absl::HexStringToBytes(address), "the test").ok()) return 1;
  if (count < 0) Flood(transport, consumer);
  std::vector<TransportEvent> events;
  for (int i = 0; i < count; ++i) {
    Tensor tensor =
        device == nullptr ? MakeTensor(transport.memory(), bytes, i) : MakeDeviceTensor(*device, bytes, i);
    if (device != nullptr && !transport.CarriesDevice(consumer)) {
      tensor = ToHost(*device, tensor, transport.memory());
    }
    transport.Offer(consumer, Key(i), std::move(tensor));
  }
  transport.Want(consumer, Key(kStopStep));

  while (events.empty()) {
    if (transport.Progress(MonotonicNow(), &events) > 0 || !transport.Arm()) continue;
    pollfd wake{transport.event_fd(), POLLIN, 0};
    poll(&wake, 1, 1000);
  }
  if (events[0].kind != TransportEvent::Kind::kArrived) {
    std::cerr << "peer " << self << ": " << events[0].status.ToString() << "\n";
    return 3;
  }
  transport.Close(MonotonicNow() + 20 * kSecond);
  return transport.bytes_held() == 0 ? 0 : 4;
}

}  // namespace
}  // namespace weft::testing

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  return weft::testing::Run(std::atoi(argv[1]), std::atoi(argv[2]), std::strtoull(argv[3], nullptr, 10),
                            std::atoi(argv[4]), argv[5]);
}
