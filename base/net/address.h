// Parses the address at which a coordinator listens and is reached: `unix:PATH` or `HOST:PORT`.
//
// One parser serves the daemons, the client and tests. Pure.
#ifndef WEFT_BASE_NET_ADDRESS_H_
#define WEFT_BASE_NET_ADDRESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// The address at which a coordinator listens, and clients look for it, by default.
inline constexpr char kDefaultCoordinator[] = "127.0.0.1:7070";

struct Address {
  bool is_unix = false;
  std::string path;  // path of a unix socket
  std::string host;  // host without brackets
  int port = 0;
  // Returns true if only this machine reaches the address.
  bool loopback() const;
  // Returns the address as the user writes it.
  std::string text() const;
};

// Parses an address. InvalidArgument with the accepted forms: an empty or too long path (more than 107
// bytes), a port out of range.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// Parses the address of a server, or those of several that stand for each other, as
// "10.0.0.1:7070,10.0.0.2:7070". InvalidArgument likewise, and for several that are not all numeric IPv4
// addresses.
absl::StatusOr<std::vector<Address>> ParseAddresses(absl::string_view text);
// Returns the addresses as the user writes them.
std::string TextOf(const std::vector<Address>& addresses);

}  // namespace weft

#endif  // WEFT_BASE_NET_ADDRESS_H_
