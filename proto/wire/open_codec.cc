#include "proto/wire/session_codec.h"

namespace weft::wire {

void Encode(const ProtocolVersions& versions, v1::Open* out) {
  out->set_protocol(versions.lowest);
  out->set_highest_protocol(versions.highest);
}

ProtocolVersions Decode(const v1::Open& in) {
  return {in.protocol(), in.highest_protocol() == 0 ? in.protocol() : in.highest_protocol()};
}

}  // namespace weft::wire
