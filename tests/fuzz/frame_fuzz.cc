// Decodes any bytes as a message, or as the address, of a transport. An accepted message must encode to the
// same bytes.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/require.h"
#include "worker/shell/transport/transport_address.h"
#include "worker/shell/transport/transport_message.h"

namespace {

void TryMessage(absl::string_view bytes) {
  weft::TransportMessage message;
  if (!weft::Decode(bytes, &message).ok()) return;
  char out[weft::TransportMessage::kMaxBytes];
  const size_t size = weft::Encode(message, out);
  weft::Require(size <= sizeof out, "a message has a bounded size");
  weft::TransportMessage again;
  weft::Require(weft::Decode({out, size}, &again).ok(), "what was decoded can be encoded");
  char once_more[weft::TransportMessage::kMaxBytes];
  const size_t same = weft::Encode(again, once_more);
  weft::Require(absl::string_view(out, size) == absl::string_view(once_more, same), "it is the same message");
}

void TryAddress(absl::string_view bytes) {
  const auto address = weft::DecodeAddress(bytes);
  if (!address.ok()) return;
  const std::string out = weft::EncodeAddress(*address);
  const auto again = weft::DecodeAddress(out);
  weft::Require(again.ok(), "what was decoded can be encoded");
  weft::Require(weft::EncodeAddress(*again) == out, "it is the same address");
}

// Returns the bytes with the checksum of addresses in place of their last four, which chance does not find:
// FNV-1a, 32 bits.
std::string WithChecksum(absl::string_view bytes) {
  if (bytes.size() < 4) return "";
  std::string whole(bytes.substr(0, bytes.size() - 4));
  uint32_t hash = 2166136261u;
  for (const char c : whole) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return whole.append(reinterpret_cast<const char*>(&hash), sizeof hash);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 2 == 0) {
    TryMessage(bytes);
  } else {
    TryAddress(bytes);
    TryAddress(WithChecksum(bytes));
  }
  return 0;
}
