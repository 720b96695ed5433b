// Keeps listening sockets that survive running out of file descriptors.
//
// A library that accepts connections by itself gives up its socket when accept() fails, as gRPC does, and a
// process that has spent its descriptors serves nobody afterwards. This listener refuses a connection, by
// accepting and closing it, while fewer than `reserved` descriptors are free, so that the process itself
// never runs out. It keeps one descriptor back to do so when none is left. The listener stays.
//
// Not thread-safe. Destruction closes the sockets and removes the files of unix sockets. Failure of Open:
// Unavailable (in use, or not an address of this machine), with what to do.
#ifndef WEFT_BASE_NET_LISTENER_H_
#define WEFT_BASE_NET_LISTENER_H_

#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/net/address.h"

namespace weft {

// Returns "" while at least `reserved` descriptors are free, else "1000 of 1024 file descriptors are in use".
std::string DescriptorShortage(int reserved);

class Listener {
 public:
  // Descriptors to keep free; with a soft limit of 256 or less a quarter of the limit is kept.
  static constexpr int kReserved = 64;

  // Opens at least one address. `reserved` descriptors stay free for others.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(std::vector<Address> addresses,
                                                        int reserved = kReserved);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Returns the addresses as given, with the real ports.
  const std::vector<Address>& addresses() const { return addresses_; }

  // Adds the sockets, which are readable when Accept has something to do.
  void AddTo(std::vector<pollfd>* descriptors) const;
  // Returns the next connection, non-blocking and closed on exec, which the caller owns; -1 if there is none
  // now.
  int Accept();

  uint64_t refused() const { return refused_; }

 private:
  Listener(std::vector<Address> addresses, int reserved);
  absl::Status Listen(Address* address);
  absl::Status ListenOnPath(const std::string& path);
  // Returns false if the address cannot be had.
  bool ListenOnPort(Address* address);
  void RefuseOne(int socket);

  std::vector<Address> addresses_;
  const int reserved_;
  std::vector<int> sockets_;
  std::vector<std::string> paths_;  // paths of unix sockets
  int spare_ = -1;                  // descriptor given up to refuse a connection when no other is left
  uint64_t refused_ = 0;
};

}  // namespace weft

#endif  // WEFT_BASE_NET_LISTENER_H_
