#include "client/doctor/port_facts.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/address.h"
#include "base/net/listener.h"
#include "base/net/port_range.h"

namespace weft {
namespace {

// Returns why nothing more can listen there; OK if it can.
absl::Status TryListen(const Address& address) { return Listener::Open({address}, /*reserved=*/0).status(); }

void TryDataPorts(PortFacts* facts) {
  const PortRange ports = ParsePorts(*facts->data_ports).value_or(PortRange());
  Address address;
  address.host = "0.0.0.0";
  for (address.port = ports.first; address.port != 0 && address.port <= ports.last; ++address.port) {
    ++facts->all_data_ports;
    if (TryListen(address).ok()) ++facts->free_data_ports;
  }
}

}  // namespace

PortFacts ReadPortFacts(const std::string& listen, const std::optional<std::string>& data_ports) {
  PortFacts facts;
  facts.listen = listen;
  facts.data_ports = data_ports;
  if (data_ports.has_value()) TryDataPorts(&facts);
  if (listen.empty()) return facts;
  const absl::StatusOr<Address> address = ParseAddress(listen);
  const absl::Status opened = address.ok() ? TryListen(*address) : address.status();
  if (!opened.ok()) facts.listen_problem = std::string(opened.message());
  return facts;
}

}  // namespace weft
