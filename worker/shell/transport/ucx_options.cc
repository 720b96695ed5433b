#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "worker/shell/transport/ucx_messenger.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {
namespace {

// Any module by which network adapters read and write memory of GPUs, under its names over the years.
bool AdaptersReachDevices() {
  for (const char* module : {"/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem",
                             "/sys/kernel/mm/memory_peers/nv_mem", "/sys/kernel/mm/memory_peers/amdkfd"}) {
    if (access(module, F_OK) == 0) return true;
  }
  return false;
}

}  // namespace

UcxOptions UcxOptionsFromEnvironment() {
  UcxOptions options;
  if (std::getenv("UCX_TLS") != nullptr) options.tls.clear();
  if (std::getenv("UCX_NET_DEVICES") != nullptr) options.net_devices.clear();
  const char* in_place = std::getenv("WEFT_IN_PLACE");
  if (in_place != nullptr && std::strcmp(in_place, "0") == 0) options.in_place = false;
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
  if (!options.tls.empty()) settings.required.emplace_back("TLS", options.tls);
  if (!options.net_devices.empty()) settings.required.emplace_back("NET_DEVICES", options.net_devices);
  std::vector<std::pair<std::string, std::string>> wished = {
      // Shared memory and CMA count as unable to report failures unless told otherwise, and then UCX does not
      // use them with our error handling.
      {"SYSV_ERROR_HANDLING", "y"},
      {"POSIX_ERROR_HANDLING", "y"},
      {"CMA_MEMORY_INVALIDATE", "y"},
      // A machine that vanished must be noticed in seconds.
      {"KEEPALIVE_INTERVAL", "1s"},
      {"TCP_KEEPIDLE", "2s"},
      {"TCP_KEEPINTVL", "1s"},
      {"TCP_KEEPCNT", "3"},
      // The default of 8 KiB costs two system calls for each 8 KiB of a tensor.
      {"TCP_TX_SEG_SIZE", "512k"},
      {"TCP_RX_SEG_SIZE", "512k"},
  };
  // UCX's record of allocations takes memory that its hooks have not seen for the host's. Without it the
  // driver is asked, each time, but only about device memory.
  if (options.device_memory != nullptr) wished.emplace_back("MEMTYPE_CACHE", "n");
  for (const auto& [name, value] : wished) {
    if (std::getenv(("UCX_" + name).c_str()) == nullptr) settings.wished.emplace_back(name, value);
  }
  return settings;
}

}  // namespace weft
