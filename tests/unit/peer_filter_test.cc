#include "worker/shell/transport/peer_filter.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::peer_filter_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Bytes(const char* text) {
  char bytes[sizeof(in6_addr)];
  if (inet_pton(AF_INET, text, bytes) == 1) return std::string(bytes, sizeof(in_addr));
  EXPECT_EQ(inet_pton(AF_INET6, text, bytes), 1) << text;
  return std::string(bytes, sizeof(in6_addr));
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct Name {
  explicit Name(const std::string& address, int port = 0) {
    if (address.size() == sizeof(in_addr)) {
      auto& name = reinterpret_cast<sockaddr_in&>(storage);
      name.sin_family = AF_INET;
      name.sin_port = htons(static_cast<uint16_t>(port));
      std::memcpy(&name.sin_addr, address.data(), address.size());
      bytes = sizeof name;
    } else {
      auto& name = reinterpret_cast<sockaddr_in6&>(storage);
      name.sin6_family = AF_INET6;
      name.sin6_port = htons(static_cast<uint16_t>(port));
      std::memcpy(&name.sin6_addr, address.data(), address.size());
      bytes = sizeof name;
    }
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

constexpr int kLong = 60'000, kShort = 50;  // milliseconds

// A socket that listens at an address of this machine.
class Listening {
 public:
  explicit Listening(const std::string& address)
      : address_(address), socket_(::socket(Name(address).storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    Name name(address);
    works_ = bind(socket_.fd(), name.get(), name.bytes) == 0 && listen(socket_.fd(), 64) == 0;
    getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&name.storage), &name.bytes);
    port_ = ntohs(name.storage.ss_family == AF_INET
                      ? reinterpret_cast<const sockaddr_in&>(name.storage).sin_port
                      : reinterpret_cast<const sockaddr_in6&>(name.storage).sin6_port);
  }
  bool works() const { return works_; }
  int fd() const { return socket_.fd(); }
  // Returns a socket that has begun to connect from the address.
  Socket ConnectFrom(const std::string& source) const {
    const Name own(source), to(address_, port_);
    Socket client(::socket(own.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(bind(client.fd(), own.get(), own.bytes), 0) << "no address of this machine";
    [[maybe_unused]] const int begun = connect(client.fd(), to.get(), to.bytes);
    return client;
  }
  bool Admits(const std::string& source) const { return IsConnected(ConnectFrom(source), kLong); }
  // Returns true if there is no answer to an attempt for a while.
  bool Drops(const std::string& source) const { return !IsConnected(ConnectFrom(source), kShort); }
  static bool IsConnected(const Socket& client, int milliseconds) {
    pollfd ready{client.fd(), POLLOUT, 0};
    int error = 0;
    socklen_t bytes = sizeof error;
    return poll(&ready, 1, milliseconds) == 1 &&
           getsockopt(client.fd(), SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error == 0;
  }

 private:
  std::string address_;
  Socket socket_;
  int port_ = 0;
  bool works_ = false;
};

TEST(PeerFilter, AddressIsAdmitted_ItConnectsAndOthersDoNot) {
  const Listening listening(Bytes("127.0.0.1"));
  ASSERT_TRUE(listening.works());
  EXPECT_TRUE(listening.Admits(Bytes("127.0.0.2"))) << "else this test sees no filter at all";
  ASSERT_TRUE(AdmitOnly(listening.fd(), {Bytes("127.0.0.1"), Bytes("127.0.0.9")}).ok());
  EXPECT_TRUE(listening.Admits(Bytes("127.0.0.1")));
  EXPECT_TRUE(listening.Admits(Bytes("127.0.0.9")));
  EXPECT_TRUE(listening.Drops(Bytes("127.0.0.2")));
  EXPECT_TRUE(listening.Drops(Bytes("127.0.1.1")));
}

TEST(PeerFilter, NothingIsAdmitted_NobodyConnects) {
  const Listening listening(Bytes("127.0.0.1"));
  ASSERT_TRUE(AdmitOnly(listening.fd(), {}).ok());
  EXPECT_TRUE(listening.Drops(Bytes("127.0.0.1")));
}

TEST(PeerFilter, AddressOfIpv6_IsComparedWhole) {
  const Listening listening(Bytes("::1"));
  if (!listening.works()) GTEST_SKIP() << "this machine has no IPv6";
  ASSERT_TRUE(AdmitOnly(listening.fd(), {Bytes("127.0.0.1"), Bytes("::2"), Bytes("1::1")}).ok());
  EXPECT_TRUE(listening.Drops(Bytes("::1")));
  ASSERT_TRUE(AdmitOnly(listening.fd(), {Bytes("::2"), Bytes("::1")}).ok());
  EXPECT_TRUE(listening.Admits(Bytes("::1")));
}

// The kernel of the sender tries again after a second.
TEST(PeerFilter, AddressIsAdmittedLater_ItsAttemptComesThrough) {
  const Listening listening(Bytes("127.0.0.1"));
  ASSERT_TRUE(AdmitOnly(listening.fd(), {}).ok());
  const Socket early = listening.ConnectFrom(Bytes("127.0.0.2"));
  EXPECT_FALSE(Listening::IsConnected(early, 0));
  ASSERT_TRUE(AdmitOnly(listening.fd(), {Bytes("127.0.0.2")}).ok());
  EXPECT_TRUE(Listening::IsConnected(early, kLong));
}

TEST(PeerFilter, NobodyIsAdmittedAnyMore_ConnectionsGoOn) {
  const Listening listening(Bytes("127.0.0.1"));
  ASSERT_TRUE(AdmitOnly(listening.fd(), {Bytes("127.0.0.2")}).ok());
  const Socket client = listening.ConnectFrom(Bytes("127.0.0.2"));
  const Socket accepted(accept(listening.fd(), nullptr, nullptr));
  ASSERT_GE(accepted.fd(), 0);
  ASSERT_TRUE(AdmitOnly(listening.fd(), {}).ok());
  ASSERT_EQ(send(client.fd(), "x", 1, 0), 1);
  char c = 0;
  EXPECT_EQ(recv(accepted.fd(), &c, 1, 0), 1);
}

TEST(PeerFilter, MoreAddressesThanAProgramHolds_NoneOfThemIsDropped) {
  std::vector<std::string> addresses;
  for (int i = 0; i < 5000; ++i) {
    addresses.push_back({127, 10, static_cast<char>(i / 250), static_cast<char>(1 + i % 250)});
  }
  const Listening listening(Bytes("127.0.0.1"));
  ASSERT_TRUE(AdmitOnly(listening.fd(), addresses).ok());
  for (size_t i = 0; i < addresses.size(); i += 499) EXPECT_TRUE(listening.Admits(addresses[i])) << i;
  EXPECT_TRUE(listening.Drops(Bytes("127.0.0.1")));
  EXPECT_TRUE(listening.Drops(Bytes("127.200.0.1")));
  EXPECT_LE(PeerProgram(addresses, 4000).size(), 4000u);
  EXPECT_LE(PeerProgram(addresses, 60).size(), 60u);
}

TEST(PeerFilter, ConnectionIsCutOff_NothingOfItIsRead) {
  const Listening listening(Bytes("127.0.0.1"));
  const Socket client = listening.ConnectFrom(Bytes("127.0.0.2"));
  const Socket accepted(accept(listening.fd(), nullptr, nullptr));
  ASSERT_EQ(send(client.fd(), "early", 5, 0), 5);
  CutOff(accepted.fd());
  send(client.fd(), "late", 4, MSG_NOSIGNAL);
  char c = 0;
  EXPECT_EQ(recv(accepted.fd(), &c, 1, 0), 0);
}

TEST(PeerFilter, OwnAddressOfASocket_IsThatOfIpv4InTheFormOfIpv6Too) {
  EXPECT_EQ(OwnAddress(Listening(Bytes("127.0.0.3")).fd()), Bytes("127.0.0.3"));
  const Listening mapped(Bytes("::ffff:127.0.0.4"));
  EXPECT_TRUE(!mapped.works() || OwnAddress(mapped.fd()) == Bytes("127.0.0.4"));
  EXPECT_EQ(OwnAddress(-1), "");
}

TEST(AddressesOfPeer, PeerOnAnotherMachine_ItsLoopbackDoesNotCount) {
  const std::string here = Bytes("10.0.0.1"), there = Bytes("10.0.0.2"), loopback = Bytes("127.0.0.1");
  EXPECT_THAT(AddressesOfPeer({here, loopback}, {there, loopback}), ElementsAre(there));
  EXPECT_THAT(AddressesOfPeer({here, loopback}, {here, loopback}), ElementsAre(here, loopback));
  EXPECT_THAT(AddressesOfPeer({loopback}, {here, loopback}), ElementsAre(here, loopback));
  EXPECT_THAT(AddressesOfPeer({here, loopback}, {there, here, loopback}), ElementsAre(there, here, loopback));
  EXPECT_THAT(AddressesOfPeer({loopback}, {loopback}), ElementsAre(loopback));
  EXPECT_THAT(AddressesOfPeer({here}, {there, Bytes("::1")}), ElementsAre(there));
  EXPECT_THAT(AddressesOfPeer({here}, {}), IsEmpty());
}

}  // namespace
}  // namespace weft::peer_filter_test
