#include "client/doctor/port_facts.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/net/address.h"
#include "base/net/listener.h"

namespace weft {
namespace {

bool CanListen(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return false;
  const int reuse = 1;  // ports of connections that have ended are free
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool can = bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                   listen(descriptor, 1) == 0;
  close(descriptor);
  return can;
}

void TryDataPorts(PortFacts* facts) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(*facts->data_ports, absl::MaxSplits('-', 1));
  int first = 0, last = 0;
  if (!absl::SimpleAtoi(ends.first, &first)) return;
  if (!absl::SimpleAtoi(ends.second.empty() ? ends.first : ends.second, &last)) return;
  for (int port = first; port <= last && port <= UINT16_MAX; ++port) {
    ++facts->all_data_ports;
    if (CanListen(port)) ++facts->free_data_ports;
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
  const absl::Status opened =
      address.ok() ? Listener::Open({*address}, /*reserved=*/0).status() : address.status();
  if (!opened.ok()) facts.listen_problem = std::string(opened.message());
  return facts;
}

}  // namespace weft
