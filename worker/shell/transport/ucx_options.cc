#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "worker/shell/transport/ucx_messenger.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {

UcxOptions UcxOptionsFromEnvironment() {
  UcxOptions options;
  if (std::getenv("UCX_TLS") != nullptr) options.tls.clear();
  if (std::getenv("UCX_NET_DEVICES") != nullptr) options.net_devices.clear();
  const char* in_place = std::getenv("WEFT_IN_PLACE");
  if (in_place != nullptr && std::strcmp(in_place, "0") == 0) options.in_place = false;
  return options;
}

UcxMessenger::Settings UcxSettings(const UcxOptions& options) {
  UcxMessenger::Settings settings;
  if (!options.tls.empty()) settings.required.emplace_back("TLS", options.tls);
  if (!options.net_devices.empty()) settings.required.emplace_back("NET_DEVICES", options.net_devices);
  const std::vector<std::pair<std::string, std::string>> wished = {
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
  for (const auto& [name, value] : wished) {
    if (std::getenv(("UCX_" + name).c_str()) == nullptr) settings.wished.emplace_back(name, value);
  }
  return settings;
}

}  // namespace weft
