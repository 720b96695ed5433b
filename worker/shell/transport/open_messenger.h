// Chooses how a transport's messages travel: by UCX everywhere, or, where the network between machines is not
// trusted, by UCX within a machine and by TLS between machines.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_OPEN_MESSENGER_H_
#define WEFT_WORKER_SHELL_TRANSPORT_OPEN_MESSENGER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/shell/transport/messenger.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {

// Opens the messenger that the options ask for. Failure: as UcxMessenger::Create and CreateTlsMessenger.
absl::StatusOr<std::unique_ptr<Messenger>> OpenMessenger(const UcxOptions& options,
                                                         Messenger::Handler* handler);

// Returns the network by which the options reach other machines: kUcxPlane or kTlsPlane. A process that
// reaches this machine only is of kUcxPlane.
std::string PlaneOf(const UcxOptions& options);
bool ReachesThisMachineOnly(const UcxOptions& options);

// Returns InvalidArgument, with what to do, if a peer of the plane `other` cannot be connected. A messenger
// trusts the form of the addresses that it is given, so one of another plane must not reach it.
absl::Status CheckPlane(const UcxOptions& options, const std::string& other);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_OPEN_MESSENGER_H_
