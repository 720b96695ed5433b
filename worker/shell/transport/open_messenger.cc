#include "worker/shell/transport/open_messenger.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/transport/layered_messenger.h"
#include "worker/shell/transport/peer_process.h"
#include "worker/shell/transport/tls_messenger.h"
#include "worker/shell/transport/transport_address.h"
#include "worker/shell/transport/ucx_messenger.h"

namespace weft {
namespace {

absl::StatusOr<std::unique_ptr<Messenger>> OpenUcx(const UcxOptions& options, Messenger::Handler* handler) {
  absl::StatusOr<std::unique_ptr<UcxMessenger>> messenger =
      UcxMessenger::Create(UcxSettings(options), handler);
  if (!messenger.ok()) return messenger.status();
  return std::unique_ptr<Messenger>(*std::move(messenger));
}

}  // namespace

std::string PlaneOf(const UcxOptions& options) {
  return options.tls_network.interfaces.empty() ? kUcxPlane : kTlsPlane;
}

bool ReachesThisMachineOnly(const UcxOptions& options) {
  return options.ucx_transports == kLocalUcxTransports && options.tls_network.interfaces.empty();
}

absl::Status CheckPlane(const UcxOptions& options, const std::string& other) {
  if (other == PlaneOf(options)) return absl::OkStatus();
  if (ReachesThisMachineOnly(options)) {
    return absl::InvalidArgumentError(
        "its data plane is a network's, and this process uses shared memory only; see --data-network");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tensors between machines go by ", other, " there, and by ", PlaneOf(options),
                   " here; start all workers with the same --data-plane, and all with --tls or none"));
}

absl::StatusOr<std::unique_ptr<Messenger>> OpenMessenger(const UcxOptions& options,
                                                         Messenger::Handler* handler) {
  if (options.tls_network.interfaces.empty()) return OpenUcx(options, handler);
  const OpenLayer far = [&options](Messenger::Handler* of_layer) {
    return CreateTlsMessenger(options.tls_network, of_layer);
  };
  if (!options.shared_memory) return far(handler);
  UcxOptions local = options;
  local.ucx_transports = kLocalUcxTransports;
  local.net_devices.clear();
  const OpenLayer near = [&local](Messenger::Handler* of_layer) { return OpenUcx(local, of_layer); };
  return OpenLayeredMessenger(ThisProcess().machine, near, far, handler);
}

}  // namespace weft
