// Frames a message on a stream of bytes: the lengths of header and payload, then the two.
//
// Lengths are known, and checked, before any byte of what they count is stored. Integers are little-endian.
// Pure.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_MESSAGE_FRAME_H_
#define WEFT_WORKER_SHELL_TRANSPORT_MESSAGE_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "worker/shell/transport/byte_stream.h"

namespace weft {

struct FrameLengths {
  uint32_t header = 0;
  uint64_t payload = 0;
};
inline constexpr size_t kFrameLengthBytes = sizeof(uint32_t) + sizeof(uint64_t);
inline constexpr uint64_t kMaxFramePayload = uint64_t{1} << 48;

inline void AppendLengths(const FrameLengths& lengths, std::string* out) {
  std::array<char, kFrameLengthBytes> bytes;
  ByteWriter writer(bytes.data());
  writer.Put(lengths.header);
  writer.Put(lengths.payload);
  out->append(bytes.data(), bytes.size());
}

// Returns the lengths in `bytes`, kFrameLengthBytes long; nothing if they are longer than any message's.
inline std::optional<FrameLengths> ReadLengths(absl::string_view bytes, size_t max_header) {
  ByteReader in(bytes);
  FrameLengths lengths;
  lengths.header = in.Get<uint32_t>();
  lengths.payload = in.Get<uint64_t>();
  if (in.short_of_bytes() || lengths.header == 0 || lengths.header > max_header) return std::nullopt;
  if (lengths.payload > kMaxFramePayload) return std::nullopt;
  return lengths;
}

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_MESSAGE_FRAME_H_
