// Keeps strangers from the TCP ports of the data plane: the kernel drops packets that do not come from an
// admitted address, before UCX sees a byte of them.
//
// UCX trusts everybody who can connect to it, and one message of 16 bytes ends the process. So a listening
// socket gets a program of the kernel's (classic BPF) that looks at the source of each packet. A socket that
// it accepts keeps the program of that moment. A dropped attempt to connect is repeated by the kernel of the
// sender after a second, so a peer that is admitted a little late still connects.
//
// An address is 4 bytes (IPv4) or 16 (IPv6) in network order. It does not keep away senders from an admitted
// address, as other users of a peer's machine.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_PEER_FILTER_H_
#define WEFT_WORKER_SHELL_TRANSPORT_PEER_FILTER_H_

#include <linux/filter.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace weft {

// Returns a program that lets packets of these addresses through and no others. With too many addresses for
// `most_instructions`, it compares as many of their first bits as fit, so that it never drops a packet of
// them. Pure.
std::vector<sock_filter> PeerProgram(const std::vector<std::string>& addresses, size_t most_instructions);

// Returns the addresses of a peer that count for a process with the addresses `own`: all of them, without the
// loopback address of a peer on another machine. Pure.
std::vector<std::string> AddressesOfPeer(const std::vector<std::string>& own,
                                         const std::vector<std::string>& peer);

// Returns the address in that name of a socket; "" if it has none.
std::string AddressBytes(const sockaddr_storage& name);

// Returns the address of this side of the socket; "" if it has none.
std::string OwnAddress(int socket);

// Lets packets of these addresses through to the socket, and no others. ResourceExhausted if the kernel takes
// no filter.
absl::Status AdmitOnly(int socket, const std::vector<std::string>& addresses);

// Ends a connection without a byte of what has come on it: nothing can be read any more.
void CutOff(int socket);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_PEER_FILTER_H_
