#include "worker/shell/transport/peer_filter.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr size_t kFourWords = 4;
using Words = std::array<uint32_t, kFourWords>;  // an address in the order of the host; IPv4 has one word

// Headers of IP begin at SKF_NET_OFF, wherever the data of the socket begin.
constexpr uint32_t kNetwork = static_cast<uint32_t>(SKF_NET_OFF);
constexpr uint32_t kSourceOfIpv4 = kNetwork + 12, kSourceOfIpv6 = kNetwork + 8;
constexpr uint32_t kWholePacket = 0xffffffff;
constexpr size_t kMaxInstructions = 4000;  // the kernel takes 4096
constexpr size_t kFewestInstructions = 60;

Words WordsOf(const std::string& address) {
  Words words{};
  for (size_t i = 0; i < address.size() / sizeof(uint32_t); ++i) {
    uint32_t word;
    std::memcpy(&word, address.data() + i * sizeof word, sizeof word);
    words[i] = ntohl(word);
  }
  return words;
}

// Returns the mask of the first `bits` bits of an address, word by word.
Words MaskOf(int bits) {
  Words mask{};
  for (uint32_t& word : mask) {
    const int of_word = std::clamp(bits, 0, 32);
    word = of_word == 0 ? 0 : ~uint32_t{0} << (32 - of_word);
    bits -= 32;
  }
  return mask;
}

// Holds the prefixes, all of one length, that contain the addresses of one family.
struct Prefixes {
  Words mask{};
  std::set<Words> values;
};

// Returns the longest prefixes of the addresses that are at most `most`.
Prefixes Shorten(const std::vector<std::string>& addresses, size_t bytes, size_t most) {
  for (int bits = static_cast<int>(8 * bytes);; --bits) {
    Prefixes prefixes{MaskOf(bits), {}};
    for (const std::string& address : addresses) {
      if (address.size() != bytes) continue;
      Words words = WordsOf(address);
      for (size_t i = 0; i < words.size(); ++i) words[i] &= prefixes.mask[i];
      prefixes.values.insert(words);
    }
    if (prefixes.values.size() <= most || bits == 0) return prefixes;
  }
}

// Appends the comparison of `words` words of the source with the prefixes; the program ends after it.
void AppendFamily(uint32_t source, size_t words, const Prefixes& prefixes, std::vector<sock_filter>* out) {
  if (!prefixes.values.empty()) {
    for (uint32_t i = 0; i < words; ++i) {
      out->push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, source + 4 * i));
      out->push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, prefixes.mask[i]));
      out->push_back(BPF_STMT(BPF_ST, i));
    }
  }
  for (const Words& value : prefixes.values) {
    for (uint32_t i = 0; i < words; ++i) {
      // A word that differs jumps over the rest of this address.
      const auto rest = static_cast<uint8_t>(2 * (words - i) - 1);
      out->push_back(BPF_STMT(BPF_LD | BPF_MEM, i));
      out->push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value[i], 0, rest));
    }
    out->push_back(BPF_STMT(BPF_RET | BPF_K, kWholePacket));
  }
  out->push_back(BPF_STMT(BPF_RET | BPF_K, 0));
}

bool IsLoopback(const std::string& address) {
  constexpr char kLoopbackNetwork = 127;
  if (address.size() == sizeof(in_addr)) return address[0] == kLoopbackNetwork;
  return address.size() == sizeof(in6_addr) &&
         std::memcmp(address.data(), &in6addr_loopback, sizeof(in6_addr)) == 0;
}

std::vector<std::string> WithoutLoopback(std::vector<std::string> addresses) {
  addresses.erase(std::remove_if(addresses.begin(), addresses.end(), IsLoopback), addresses.end());
  return addresses;
}

}  // namespace

std::vector<sock_filter> PeerProgram(const std::vector<std::string>& addresses, size_t most_instructions) {
  // An address takes two instructions for each word and one more. Half of the program is for each family.
  const Prefixes ipv4 = Shorten(addresses, sizeof(in_addr), most_instructions / 2 / 3);
  const Prefixes ipv6 = Shorten(addresses, sizeof(in6_addr), most_instructions / 2 / 9);
  std::vector<sock_filter> of_ipv4, program;
  AppendFamily(kSourceOfIpv4, 1, ipv4, &of_ipv4);
  program.push_back(BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kNetwork));
  program.push_back(BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4));  // the version of IP
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4, 1, 0));
  program.push_back(BPF_STMT(BPF_JMP | BPF_JA, static_cast<uint32_t>(of_ipv4.size())));
  program.insert(program.end(), of_ipv4.begin(), of_ipv4.end());
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 6, 1, 0));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  AppendFamily(kSourceOfIpv6, kFourWords, ipv6, &program);
  return program;
}

std::vector<std::string> AddressesOfPeer(const std::vector<std::string>& own,
                                         const std::vector<std::string>& peer) {
  const std::vector<std::string> ours = WithoutLoopback(own), its = WithoutLoopback(peer);
  const bool shared = std::find_first_of(ours.begin(), ours.end(), its.begin(), its.end()) != ours.end();
  // A process on another machine shares no address with this one.
  return ours.empty() || its.empty() || shared ? peer : its;
}

std::string OwnAddress(int socket) {
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &bytes) != 0) return "";
  return AddressBytes(own);
}

std::string AddressBytes(const sockaddr_storage& name) {
  if (name.ss_family == AF_INET) {
    const in_addr& address = reinterpret_cast<const sockaddr_in&>(name).sin_addr;
    return std::string(reinterpret_cast<const char*>(&address), sizeof address);
  }
  if (name.ss_family != AF_INET6) return "";
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(name).sin6_addr;
  const std::string all(reinterpret_cast<const char*>(&address), sizeof address);
  // An address of IPv4 in the form of IPv6: its packets are of IPv4.
  return IN6_IS_ADDR_V4MAPPED(&address) ? all.substr(all.size() - sizeof(in_addr)) : all;
}

absl::Status AdmitOnly(int socket, const std::vector<std::string>& addresses) {
  // Older kernels have less room for the options of a socket than the largest program takes.
  for (size_t most = kMaxInstructions; most >= kFewestInstructions; most /= 2) {
    std::vector<sock_filter> program = PeerProgram(addresses, most);
    const sock_fprog attached{static_cast<unsigned short>(program.size()), program.data()};
    if (setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &attached, sizeof attached) == 0) {
      return absl::OkStatus();
    }
    if (errno != ENOMEM) break;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the kernel does not filter the data plane's port by address (", std::strerror(errno),
                   "), and without that everybody who reaches it can end this process: let the process set "
                   "SO_ATTACH_FILTER, or use --data-network local"));
}

void CutOff(int socket) {
  AdmitOnly(socket, {}).IgnoreError();
  char dropped[4096];
  while (recv(socket, dropped, sizeof dropped, MSG_DONTWAIT) > 0) continue;
  shutdown(socket, SHUT_RDWR);
}

}  // namespace weft
