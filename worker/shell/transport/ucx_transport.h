// Moves tensors between worker processes: by a messenger for messages and for bytes between machines, by
// mapped memory within one. The messenger is UCX, or TLS to other machines where there are certificates
// (open_messenger.h).
//
// Size and place decide how a tensor of the host travels:
//   - at most `inline_bytes`: within the message;
//   - else, same machine and inside memory(): in place; the message names the place, the consumer maps the
//     segment once, reads there, and says when it is done;
//   - else: the messenger copies it into memory of the consumer's memory() (UCX eager or by rendezvous, as it
//     finds best).
//
// A consumer that cannot map a segment asks for the bytes instead, so in place is never a condition of
// success.
//
// A tensor of the device's memory travels as such where both processes have a device of one kind and UCX has
// a transport that moves that memory directly (transfer_path.h): CUDA IPC within a machine, also between
// processes that share a GPU, or RDMA. It always goes by rendezvous and lands in memory of the consumer's
// device; the host touches no byte of it. Else CarriesDevice is false, and the worker brings it to host
// memory first.
//
// Threads: with a device, its driver must know every thread that calls, and also the one that creates the
// transport (Device::PrepareThread): UCX asks the driver about memory and enqueues copies there.
//
// A dead peer on this machine is noticed at once, by its process descriptor; elsewhere when the connection is
// reset. A link that carries nothing any more is noticed within seconds where a tensor is awaited on it,
// reported (DescribeSilence, log), and given up after `link_timeout_ns`; an outage of up to half of that
// heals by itself, because TCP doubles its pause before it sends again.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_H_
#define WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "run/inline_bytes.h"
#include "worker/shell/transport/tls_messenger.h"
#include "worker/shell/transport/transport.h"
#include "worker/shell/transport/transport_message.h"
#include "worker/shell/transport/ucx_messenger.h"

namespace weft {

struct UcxOptions {
  // The value of UCX_TLS; empty leaves it to UCX and its environment. The default excludes posix, which
  // creates files in /dev/shm that a kill at the wrong moment would leave there; sysv segments are as fast
  // and go with their process.
  std::string ucx_transports = "^posix";
  // The value of UCX_NET_DEVICES. "lo": processes of this machine only. Empty: every network that UCX finds.
  std::string net_devices = "lo";
  PortRange ports;       // ports of its TCP
  bool in_place = true;  // false: always copy
  size_t inline_bytes = kInlineBytes;
  size_t receive_pool_idle_limit = size_t{256} << 20;  // unused receive memory that is kept

  // The device's memory (DeviceBackend::memory()), in which tensors of peers' devices land; null for none. It
  // outlives the transport and all that arrived in it. Blocks taken from it are kept until then: giving one
  // back would wait for the device, and peers may have it open.
  MemorySource* device_memory = nullptr;
  std::string device_kind;    // kind as the name of UCX's transport begins: "cuda"; "host" for tests
  std::string device_uuid;    // DeviceBackend::uuid()
  bool device_direct = true;  // false: CarriesDevice is false for every peer
  bool rdma_direct = false;   // true if network adapters reach the device's memory

  // The network to processes of other machines where UCX's is not trusted; its `interfaces` empty: UCX
  // reaches them, too.
  TlsNetwork tls_network;
  // False: processes of this machine use that network, too.
  bool shared_memory = true;

  // The silence after which a link with an awaited tensor is reported, and is given up (link_watch.h).
  int64_t link_notice_ns = 5'000'000'000, link_timeout_ns = 120'000'000'000;

  // Gets a line, without its end, with the paths to a peer when tensors first go to it, and when a link
  // becomes silent or answers again. May be null.
  std::function<void(const std::string& line)> log;
  // Returns true for a message that is to be lost, in tests of that; null otherwise.
  std::function<bool(TransportMessage::Type)> loses = nullptr;
};

// The transports within one machine: no TCP, and so no socket on which anybody could connect, and no
// InfiniBand.
inline constexpr char kLocalUcxTransports[] = "^posix,tcp,ib";

// Chooses the networks by which peers reach this process. `network` is `local`: within this machine only, by
// shared memory, without a listening socket; `all`; a list of interfaces, as UCX_NET_DEVICES; or `auto`:
// local where the coordinator is reached by a unix socket or loopback, else the interface by which it is
// reached. UCX_TLS and UCX_NET_DEVICES count instead, where they are set. `coordinator` is as in
// base/net/address.h.
void ChooseNetwork(const std::string& network, const std::string& coordinator, UcxOptions* options);

// Chooses likewise where UCX is not to be trusted with the network: by `secured` to processes of other
// machines, on the interfaces of `network`; UCX_TLS and UCX_NET_DEVICES do not count. Does no more than
// ChooseNetwork where the network is local.
void ChooseTlsNetwork(const std::string& network, const std::string& coordinator, TlsNetwork secured,
                      UcxOptions* options);

// Returns the defaults, changed by the environment: UCX_ variables, where set, count instead of ours,
// WEFT_IN_PLACE=0 turns in-place reading off, WEFT_SHARED_MEMORY=0 has processes of one machine use TLS where
// those of others do, WEFT_DEVICE_DIRECT=0 stages device memory always, and
// WEFT_DEVICE_RDMA (0, 1) says whether network adapters reach device memory, which otherwise the presence of
// the kernel's module for that decides.
UcxOptions UcxOptionsFromEnvironment();

// Makes the transport take tensors of a device. `name` and `uuid` as DeviceBackend's: "cuda:0" is of kind
// "cuda". `memory` as UcxOptions::device_memory.
void UseDevice(absl::string_view name, absl::string_view uuid, MemorySource* memory, UcxOptions* options);

// Translates the options to UCX's variables.
UcxMessenger::Settings UcxSettings(const UcxOptions& options);

// Creates the transport. Unavailable or InvalidArgument, with the settings, if UCX cannot start.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_H_
