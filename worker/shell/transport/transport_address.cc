#include "worker/shell/transport/transport_address.h"

#include <array>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "worker/shell/transport/byte_stream.h"

namespace weft {
namespace {

constexpr uint32_t kAddressName = 0x414657;  // "WFA"; the format is the byte behind it
constexpr uint32_t kAddressFormat = 4;
constexpr size_t kFixedBytes = 4 + 8 + 4 + 8 + 3 * 8 + 4 + 7 * 4;
constexpr size_t kIpv4Bytes = 4, kIpv6Bytes = 16;

// Returns a checksum of the address (FNV-1a). A messenger trusts the address that it is given, so one that
// was cut or changed on its way must not reach it.
uint32_t Checksum(absl::string_view bytes) {
  uint32_t hash = 2166136261u;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return hash;
}

std::string JoinSources(const TransportAddress& address, size_t bytes) {
  std::string joined;
  for (const std::string& source : address.sources) {
    if (source.size() == bytes) joined += source;
  }
  return joined;
}

void SplitSources(const std::string& joined, size_t bytes, TransportAddress* address) {
  for (size_t at = 0; at < joined.size(); at += bytes) address->sources.push_back(joined.substr(at, bytes));
}

}  // namespace

uint64_t NewSenderNumber() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

std::string EncodeAddress(const TransportAddress& address) {
  std::string out(kFixedBytes, '\0');
  ByteWriter writer(out.data());
  writer.Put(kAddressFormat << 24 | kAddressName);
  writer.Put(address.sender);
  writer.Put(address.process.pid);
  writer.Put(address.process.start_time);
  writer.Put(address.probe.id);
  writer.Put(address.probe.inode);
  writer.Put(address.probe.bytes);
  writer.Put(address.probe.descriptor);
  writer.Put(static_cast<uint32_t>(address.process.machine.size()));
  writer.Put(static_cast<uint32_t>(address.messenger.size()));
  writer.Put(static_cast<uint32_t>(address.device.kind.size()));
  writer.Put(static_cast<uint32_t>(address.device.uuid.size()));
  const std::string ipv4 = JoinSources(address, kIpv4Bytes), ipv6 = JoinSources(address, kIpv6Bytes);
  writer.Put(static_cast<uint32_t>(ipv4.size()));
  writer.Put(static_cast<uint32_t>(ipv6.size()));
  writer.Put(static_cast<uint32_t>(address.plane.size()));
  absl::StrAppend(&out, address.process.machine, address.messenger, address.device.kind, address.device.uuid);
  absl::StrAppend(&out, ipv4, ipv6, address.plane);
  const uint32_t checksum = Checksum(out);
  out.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return out;
}

absl::StatusOr<TransportAddress> DecodeAddress(absl::string_view bytes) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("the ", bytes.size(), " bytes are not the address of a transport of this version"));
  constexpr size_t kTail = sizeof(uint32_t);
  if (bytes.size() < kFixedBytes + kTail) return bad;
  const absl::string_view body = bytes.substr(0, bytes.size() - kTail);
  if (ByteReader(bytes.substr(body.size())).Get<uint32_t>() != Checksum(body)) return bad;
  ByteReader in(body);
  const auto magic = in.Get<uint32_t>();
  if ((magic & 0xffffff) != kAddressName) return bad;
  if (const uint32_t format = magic >> 24; format != kAddressFormat) {
    return absl::InvalidArgumentError(absl::StrCat("the address of its transport has the format ", format,
                                                   ", and this release reads format ", kAddressFormat,
                                                   "; train with workers of one release"));
  }
  TransportAddress address;
  address.sender = in.Get<uint64_t>();
  address.process.pid = in.Get<int32_t>();
  address.process.start_time = in.Get<uint64_t>();
  address.probe.id = in.Get<uint64_t>();
  address.probe.inode = in.Get<uint64_t>();
  address.probe.bytes = in.Get<uint64_t>();
  address.probe.descriptor = in.Get<int32_t>();
  std::string ipv4, ipv6;
  const std::array<std::string*, 7> texts = {&address.process.machine,
                                             &address.messenger,
                                             &address.device.kind,
                                             &address.device.uuid,
                                             &ipv4,
                                             &ipv6,
                                             &address.plane};
  std::array<size_t, texts.size()> sizes;
  for (size_t& size : sizes) size = in.Get<uint32_t>();
  const size_t all = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  if (all != body.size() - kFixedBytes || sizes[1] == 0) return bad;
  if (sizes[4] % kIpv4Bytes != 0 || sizes[5] % kIpv6Bytes != 0) return bad;
  size_t at = kFixedBytes;
  for (size_t i = 0; i < texts.size(); ++i) {
    *texts[i] = std::string(body.substr(at, sizes[i]));
    at += sizes[i];
  }
  SplitSources(ipv4, kIpv4Bytes, &address);
  SplitSources(ipv6, kIpv6Bytes, &address);
  return address;
}

}  // namespace weft
