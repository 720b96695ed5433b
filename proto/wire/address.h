// Where a coordinator listens and where it is reached: `unix:PATH` or `HOST:PORT`.
//
// One parser for the daemons, the client and tests. Pure.
#ifndef WEFT_PROTO_WIRE_ADDRESS_H_
#define WEFT_PROTO_WIRE_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// Where a coordinator listens and clients look for it if nobody says otherwise.
inline constexpr char kDefaultCoordinator[] = "127.0.0.1:7070";

struct Address {
  bool is_unix = false;
  std::string path;  // of a unix socket
  std::string host;  // without brackets
  int port = 0;
  // Reachable from this machine only.
  bool loopback() const;
  // As the user writes it.
  std::string text() const;
};

// InvalidArgument with the accepted forms: an empty or too long path (more than 107 bytes), a port out of
// range.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

}  // namespace weft

#endif  // WEFT_PROTO_WIRE_ADDRESS_H_
