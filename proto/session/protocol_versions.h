// Chooses the version of the session protocol that a worker and a coordinator speak, which may be of
// different releases while a service is upgraded.
//
// Each side says the lowest and the highest version that it speaks. Both sides know both ranges then, and
// both choose the highest version in common. docs/guide/upgrades.md says when a release changes its range.
//
// Pure.
#ifndef WEFT_PROTO_SESSION_PROTOCOL_VERSIONS_H_
#define WEFT_PROTO_SESSION_PROTOCOL_VERSIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace weft {

// The versions that one side speaks: all from the lowest to the highest.
struct ProtocolVersions {
  uint32_t lowest = 0, highest = 0;
  std::string text() const;  // "version 2", "versions 2 to 3"
};

// The versions that this release speaks.
inline constexpr ProtocolVersions kProtocolVersions{2, 2};

// Returns the highest version that both sides speak. FailedPrecondition if there is none: the message has
// both ranges, and says which side to upgrade. InvalidArgument if a range is empty, which only a faulty peer
// sends.
absl::StatusOr<uint32_t> ChooseProtocol(const ProtocolVersions& worker, const ProtocolVersions& coordinator);

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_PROTOCOL_VERSIONS_H_
