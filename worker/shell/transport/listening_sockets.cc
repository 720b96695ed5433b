#include "worker/shell/transport/listening_sockets.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

namespace weft {
namespace {

bool AcceptsTcp(int fd) {
  int domain = 0, accepts = 0;
  socklen_t bytes = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0) return false;
  if (domain != AF_INET && domain != AF_INET6) return false;
  bytes = sizeof accepts;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &bytes) == 0 && accepts != 0;
}

}  // namespace

std::vector<ListeningSocket> ListeningSockets() {
  std::vector<ListeningSocket> sockets;
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return sockets;
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    struct stat info;
    if (entry->d_name[0] == '.' || !AcceptsTcp(fd) || fstat(fd, &info) != 0) continue;
    sockets.push_back({fd, info.st_ino});
  }
  closedir(folder);
  std::sort(sockets.begin(), sockets.end(), [](const auto& a, const auto& b) { return a.fd < b.fd; });
  return sockets;
}

bool Listens(const ListeningSocket& socket) {
  struct stat info;
  return fstat(socket.fd, &info) == 0 && info.st_ino == socket.inode && AcceptsTcp(socket.fd);
}

}  // namespace weft
