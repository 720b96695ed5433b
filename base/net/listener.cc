#include "base/net/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr rlim_t kMaxDescriptors = 1 << 20;

int DescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(std::min(limit.rlim_cur, kMaxDescriptors));
}

// Returns the largest number of a descriptor that leaves enough for others: a new one has the smallest free
// number.
int MaxDescriptorNumber(int reserved) {
  const int limit = DescriptorLimit();
  return limit - std::min(reserved, limit / 4);
}

// Asks whether a server listens on the path, before its file is replaced.
absl::Status CheckPath(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on unix:", path, ": the file exists and is not a socket"));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool answers = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  if (!answers) return absl::OkStatus();  // left behind by a server that is gone; it is replaced
  return absl::UnavailableError(absl::StrCat(
      "cannot listen on unix:", path, ": another coordinator listens there; stop it or choose another path"));
}

}  // namespace

std::string DescriptorShortage(int reserved) {
  const int fd = eventfd(0, EFD_CLOEXEC);
  if (fd >= 0) close(fd);
  if (fd >= 0 && fd < MaxDescriptorNumber(reserved)) return "";
  const int limit = DescriptorLimit();
  return absl::StrCat(fd < 0 ? limit : fd, " of ", limit, " file descriptors are in use");
}

Listener::Listener(std::vector<Address> addresses, int reserved)
    : addresses_(std::move(addresses)), reserved_(reserved), spare_(eventfd(0, EFD_CLOEXEC)) {}

Listener::~Listener() {
  for (const int socket : sockets_) close(socket);
  for (const std::string& path : paths_) unlink(path.c_str());
  if (spare_ >= 0) close(spare_);
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(std::vector<Address> addresses, int reserved) {
  auto listener = std::unique_ptr<Listener>(new Listener(std::move(addresses), reserved));
  for (Address& address : listener->addresses_) {
    if (absl::Status s = listener->Listen(&address); !s.ok()) return s;
  }
  return listener;
}

absl::Status Listener::Listen(Address* address) {
  if (address->is_unix) return ListenOnPath(address->path);
  if (ListenOnPort(address)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address->text(),
                   ": the address is in use, or is not an address of this machine; choose another one"));
}

absl::Status Listener::ListenOnPath(const std::string& path) {
  if (absl::Status s = CheckPath(path); !s.ok()) return s;
  unlink(path.c_str());
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0 &&
      listen(fd, SOMAXCONN) == 0) {
    sockets_.push_back(fd);
    paths_.push_back(path);
    return absl::OkStatus();
  }
  const int error = errno;
  if (fd >= 0) close(fd);
  return absl::UnavailableError(
      absl::StrCat("cannot listen on unix:", path, ": ", std::strerror(error), "; choose another path"));
}

bool Listener::ListenOnPort(Address* address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(address->host.c_str(), std::to_string(address->port).c_str(), &hints, &found) != 0)
    return false;
  bool any = false;
  // A name may stand for several addresses; all get the same port.
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    auto* port = a->ai_family == AF_INET6 ? &reinterpret_cast<sockaddr_in6*>(a->ai_addr)->sin6_port
                                          : &reinterpret_cast<sockaddr_in*>(a->ai_addr)->sin_port;
    *port = htons(static_cast<uint16_t>(address->port));
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    const int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));  // accepted sockets inherit it
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
      const bool in_use = errno == EADDRINUSE;
      close(fd);
      if (!in_use) continue;
      any = false;
      break;
    }
    sockaddr_storage name{};
    socklen_t size = sizeof(name);
    getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size);
    address->port = ntohs(a->ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                                   : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
    sockets_.push_back(fd);
    any = true;
  }
  freeaddrinfo(found);
  return any;
}

void Listener::AddTo(std::vector<pollfd>* descriptors) const {
  for (const int socket : sockets_) descriptors->push_back({socket, POLLIN, 0});
}

int Listener::Accept() {
  for (const int socket : sockets_) {
    while (true) {
      const int fd = accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (fd < 0 && (errno == EMFILE || errno == ENFILE)) RefuseOne(socket);
      if (fd < 0) break;
      if (fd < MaxDescriptorNumber(reserved_)) return fd;
      close(fd);
      ++refused_;
    }
  }
  return -1;
}

void Listener::RefuseOne(int socket) {
  if (spare_ >= 0) close(spare_);
  const int fd = accept4(socket, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) close(fd);
  refused_ += fd >= 0;
  spare_ = eventfd(0, EFD_CLOEXEC);
}

}  // namespace weft
