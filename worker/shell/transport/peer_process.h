// Identifies a peer and tells whether it still lives, where the operating system can: for processes of the
// same machine.
//
// Shared memory does not notice that a peer died. A process descriptor (pidfd) does, at once and without
// being fooled by a reused pid, so a dead peer is reported in milliseconds instead of at the next keep-alive.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_PEER_PROCESS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_PEER_PROCESS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace weft {

// Identifies a process over machines, containers and reuse of pids.
struct ProcessIdentity {
  std::string machine;  // boot id and pid namespace: equal exactly for processes that see each other's pids
  int32_t pid = 0;
  uint64_t start_time = 0;  // clock ticks after boot
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

ProcessIdentity ThisProcess();

// Opens a descriptor that becomes readable when the process ends; the caller closes it. Unavailable if the
// process has ended, Unimplemented if it is on another machine or the kernel has no such descriptors.
absl::StatusOr<int> OpenProcess(const ProcessIdentity& process);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_PEER_PROCESS_H_
