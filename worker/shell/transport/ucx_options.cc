#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/net/address.h"
#include "worker/shell/transport/ucx_messenger.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// Returns when the kernel gives a connection up, whether it is idle or bytes wait for their acknowledgement.
// LinkWatch reports a link that carries nothing, and gives it up a little before: an outage that heals until
// then costs nothing.
int64_t TcpTimeout(const UcxOptions& options) { return options.link_timeout_ns + 30 * kSecond; }

// Returns true if a module is loaded by which network adapters read and write memory of GPUs, under its names
// over the years.
bool AdaptersReachDevices() {
  for (const char* module : {"/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem",
                             "/sys/kernel/mm/memory_peers/nv_mem", "/sys/kernel/mm/memory_peers/amdkfd"}) {
    if (access(module, F_OK) == 0) return true;
  }
  return false;
}

bool SameAddress(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

std::string InterfaceWith(const sockaddr* own) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string name;
  for (const ifaddrs* i = all; i != nullptr && name.empty(); i = i->ifa_next) {
    if (SameAddress(i->ifa_addr, own)) name = i->ifa_name;
  }
  freeifaddrs(all);
  return name;
}

// Returns the interface by which this machine sends to the host; "" if that cannot be found. Sends nothing.
std::string InterfaceTo(const Address& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found) != 0) return "";
  std::string name;
  for (const addrinfo* i = found; i != nullptr && name.empty(); i = i->ai_next) {
    const int fd = socket(i->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t bytes = sizeof own;
    if (fd >= 0 && connect(fd, i->ai_addr, i->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes) == 0) {
      name = InterfaceWith(reinterpret_cast<const sockaddr*>(&own));
    }
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  return name;
}

}  // namespace

void ChooseNetwork(const std::string& network, const std::string& coordinator, UcxOptions* options) {
  if (options->ucx_transports.empty() || options->net_devices.empty()) return;  // the environment decides
  const absl::StatusOr<std::vector<Address>> addresses = ParseAddresses(coordinator);
  const bool near = addresses.ok() && std::all_of(addresses->begin(), addresses->end(),
                                                  [](const Address& address) { return address.loopback(); });
  if (network == "local" || (network == "auto" && near)) {
    options->ucx_transports = kLocalUcxTransports;
    options->net_devices.clear();
  } else if (network != "auto") {
    options->net_devices = network;
  } else if (addresses.ok()) {
    const std::string interface = InterfaceTo(addresses->front());
    if (!interface.empty()) options->net_devices = interface;
  }
}

void ChooseTlsNetwork(const std::string& network, const std::string& coordinator, TlsNetwork secured,
                      UcxOptions* options) {
  options->ucx_transports = UcxOptions().ucx_transports;
  options->net_devices = UcxOptions().net_devices;
  ChooseNetwork(network, coordinator, options);
  if (options->ucx_transports == kLocalUcxTransports) return;
  secured.interfaces = options->net_devices;
  secured.ports = options->ports;
  secured.timeout_ns = TcpTimeout(*options);
  options->tls_network = std::move(secured);
}

UcxOptions UcxOptionsFromEnvironment() {
  UcxOptions options;
  if (std::getenv("UCX_TLS") != nullptr) options.ucx_transports.clear();
  if (std::getenv("UCX_NET_DEVICES") != nullptr) options.net_devices.clear();
  const char* in_place = std::getenv("WEFT_IN_PLACE");
  if (in_place != nullptr && std::strcmp(in_place, "0") == 0) options.in_place = false;
  const char* shared = std::getenv("WEFT_SHARED_MEMORY");
  if (shared != nullptr && std::strcmp(shared, "0") == 0) options.shared_memory = false;
  const char* direct = std::getenv("WEFT_DEVICE_DIRECT");
  if (direct != nullptr && std::strcmp(direct, "0") == 0) options.device_direct = false;
  const char* rdma = std::getenv("WEFT_DEVICE_RDMA");
  options.rdma_direct = rdma != nullptr ? std::strcmp(rdma, "0") != 0 : AdaptersReachDevices();
  return options;
}

void UseDevice(absl::string_view name, absl::string_view uuid, MemorySource* memory, UcxOptions* options) {
  options->device_kind = std::string(name.substr(0, name.find(':')));
  options->device_uuid = std::string(uuid);
  options->device_memory = memory;
}

UcxMessenger::Settings UcxSettings(const UcxOptions& options) {
  UcxMessenger::Settings settings;
  if (!options.ucx_transports.empty()) settings.required.emplace_back("TLS", options.ucx_transports);
  if (!options.net_devices.empty()) settings.required.emplace_back("NET_DEVICES", options.net_devices);
  if (options.ports.first != 0) {
    settings.required.emplace_back("TCP_PORT_RANGE",
                                   absl::StrCat(options.ports.first, "-", options.ports.last));
  }
  std::vector<std::pair<std::string, std::string>> wished = {
      // Shared memory and CMA count as unable to report failures unless told otherwise, and then UCX does not
      // use them with our error handling.
      {"SYSV_ERROR_HANDLING", "y"},
      {"POSIX_ERROR_HANDLING", "y"},
      {"CMA_MEMORY_INVALIDATE", "y"},
      {"KEEPALIVE_INTERVAL", "1s"},
      {"TCP_KEEPIDLE", "2s"},
      {"TCP_KEEPINTVL", "1s"},
      {"TCP_USER_TIMEOUT", absl::StrCat(TcpTimeout(options) / kSecond, "s")},
      // UCX waits by default within ucp_ep_create until the peer's kernel has answered, which it does only
      // once the peer has let this process in (peer_filter.h).
      {"TCP_CONN_NB", "y"},
      // The default of 8 KiB costs two system calls for each 8 KiB of a tensor.
      {"TCP_TX_SEG_SIZE", "512k"},
      {"TCP_RX_SEG_SIZE", "512k"},
  };
  // UCX's record of allocations takes memory that its hooks have not seen for the host's. Without it UCX asks
  // the driver, each time, but only about device memory.
  if (options.device_memory != nullptr) wished.emplace_back("MEMTYPE_CACHE", "n");
  for (const auto& [name, value] : wished) {
    if (std::getenv(("UCX_" + name).c_str()) == nullptr) settings.wished.emplace_back(name, value);
  }
  return settings;
}

}  // namespace weft
