#include "worker/shell/transport/listening_sockets.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

namespace weft {
namespace {

enum class Use { kNoTcp, kListens, kConnected };

Use UseOf(int fd) {
  int domain = 0, type = 0, accepts = 0;
  socklen_t bytes = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0) return Use::kNoTcp;
  if (domain != AF_INET && domain != AF_INET6) return Use::kNoTcp;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_STREAM) return Use::kNoTcp;
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &bytes) != 0) return Use::kNoTcp;
  return accepts != 0 ? Use::kListens : Use::kConnected;
}

std::vector<TcpSocket> SocketsOf(Use use) {
  std::vector<TcpSocket> sockets;
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return sockets;
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    struct stat info;
    if (entry->d_name[0] == '.' || UseOf(fd) != use || fstat(fd, &info) != 0) continue;
    sockets.push_back({fd, info.st_ino});
  }
  closedir(folder);
  std::sort(sockets.begin(), sockets.end(), [](const auto& a, const auto& b) { return a.fd < b.fd; });
  return sockets;
}

}  // namespace

std::vector<TcpSocket> ListeningSockets() { return SocketsOf(Use::kListens); }
std::vector<TcpSocket> ConnectedSockets() { return SocketsOf(Use::kConnected); }

bool Listens(const TcpSocket& socket) {
  struct stat info;
  return fstat(socket.fd, &info) == 0 && info.st_ino == socket.inode && UseOf(socket.fd) == Use::kListens;
}

}  // namespace weft
