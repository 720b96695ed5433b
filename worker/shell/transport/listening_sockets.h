// Finds the TCP sockets of this process: those on which it accepts connections, and those that are connected.
//
// UCX opens such a socket for its TCP transport and closes it for good when a connection comes while no
// descriptor is left, without any report. So the sockets are listed when UCX has started, and checked later.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_LISTENING_SOCKETS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_LISTENING_SOCKETS_H_

#include <cstdint>
#include <vector>

namespace weft {

struct TcpSocket {
  int fd = -1;
  uint64_t inode = 0;  // tells the socket from another file that has the descriptor later
  friend bool operator==(const TcpSocket&, const TcpSocket&) = default;
};

// Both return the sockets ordered by descriptor.
std::vector<TcpSocket> ListeningSockets();
std::vector<TcpSocket> ConnectedSockets();
// Returns true if the socket still accepts connections.
bool Listens(const TcpSocket& socket);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_LISTENING_SOCKETS_H_
