// The transport between worker processes: UCX for messages and for bytes between machines, mapped memory
// within one.
//
// What decides how a tensor travels:
//   at most `inline_bytes`: within the message;
//   else, same machine and inside memory(): in place; the message says where, the consumer maps the segment
//   once and
//     reads there, and says when it is done;
//   else: UCX copies it into memory of the consumer's memory() (eager or rendezvous, as UCX finds best).
// A consumer that cannot map a segment asks for the bytes instead, so in place is never a condition of
// success.
//
// A dead peer on this machine is noticed at once, by its process descriptor; elsewhere by UCX (reset of the
// connection, or keep-alive within some seconds).
#ifndef WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_H_
#define WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/shell/transport/transport.h"
#include "worker/shell/transport/ucx_messenger.h"

namespace weft {

struct UcxOptions {
  // As UCX_TLS; empty leaves it to UCX and its environment. Without posix: it creates files in /dev/shm that
  // a kill at the wrong moment would leave there; sysv segments are as fast and go with their process.
  std::string tls = "^posix";
  // As UCX_NET_DEVICES. "lo": processes of this machine only. Empty: every network that UCX finds.
  std::string net_devices = "lo";
  bool in_place = true;  // false: always copy
  size_t inline_bytes = 1024;
  size_t receive_pool_idle_limit = size_t{256} << 20;  // unused receive memory that is kept
};

// The defaults, changed by the environment: UCX_ variables, where set, count instead of ours,
// and WEFT_IN_PLACE=0 turns in-place reading off.
UcxOptions UcxOptionsFromEnvironment();

// What the options mean to UCX.
UcxMessenger::Settings UcxSettings(const UcxOptions& options);

// Unavailable or InvalidArgument, with the settings, if UCX cannot start.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_H_
