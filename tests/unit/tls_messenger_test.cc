// Messages over TLS: they arrive whole and from workers alone; strangers reach nothing and harm nothing.
#include "worker/shell/transport/tls_messenger.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "base/net/address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/worker_certificates.h"
#include "tests/unit/second.h"
#include "worker/shell/transport/layered_messenger.h"
#include "worker/shell/transport/message_frame.h"

namespace weft::tls_messenger_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TestCertificates;

// Keeps what it hears. A payload lands in a string of its own, unless `refuses`.
class Heard final : public Messenger::Handler {
 public:
  void OnMessage(absl::string_view header) override { messages.emplace_back(header); }
  Landing OnPayload(absl::string_view header, size_t bytes) override {
    payload_headers.emplace_back(header);
    if (refuses) return {};
    const auto token = payloads.size();
    payloads.push_back(std::make_unique<std::string>(bytes, '\0'));
    return {payloads.back()->data(), token, place};
  }
  void OnLanded(uint64_t token, const absl::Status& status) override { landed.emplace_back(token, status); }
  void OnSent(uint64_t token, const absl::Status& status) override { sent[token] = status; }
  void OnLinkFailed(Messenger::LinkId link, const absl::Status& cause) override {
    failed.emplace_back(link, std::string(cause.message()));
  }

  bool refuses = false;
  MemoryPlace place = MemoryPlace::kHost;
  std::vector<std::string> messages, payload_headers;
  std::vector<std::unique_ptr<std::string>> payloads;
  std::vector<std::pair<uint64_t, absl::Status>> landed;
  std::map<uint64_t, absl::Status> sent;
  std::vector<std::pair<Messenger::LinkId, std::string>> failed;
};

struct Side {
  Heard heard;
  std::vector<std::string> log;
  std::unique_ptr<Messenger> messenger;
};

class TlsMessages : public ::testing::Test {
 protected:
  void Open(Side* side, const std::string& certificates) {
    TlsNetwork network = testing::LoopbackNetworkWith(certificates);
    network.log = [side](const std::string& line) { side->log.push_back(line); };
    auto messenger = CreateTlsMessenger(network, &side->heard);
    ASSERT_TRUE(messenger.ok()) << messenger.status();
    side->messenger = *std::move(messenger);
  }
  void SetUp() override {
    Open(&a_, certificates_.Add("a", "weft://worker/a"));
    Open(&b_, certificates_.Add("b", "weft://worker/b"));
    link_ = *a_.messenger->Connect(b_.messenger->address());
  }
  bool Until(const std::function<bool()>& done, int64_t limit = 30 * kSecond) {
    for (const int64_t end = MonotonicNow() + limit; !done();) {
      if (MonotonicNow() > end) return false;
      for (Side* side : {&a_, &b_, &c_}) {
        if (side->messenger != nullptr) side->messenger->Progress();
      }
    }
    return true;
  }
  bool Arrives(const std::string& text) {
    a_.messenger->Send(link_, text, {});
    return Until([&] { return !b_.heard.messages.empty() && b_.heard.messages.back() == text; });
  }
  // Connects a plain socket to b.
  int ConnectToB() {
    const absl::StatusOr<Address> address =
        ParseAddress(absl::string_view(b_.messenger->address()).substr(0, b_.messenger->address().find(',')));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(address->port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << b_.messenger->address();
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
  }
  // Returns true once b has closed the connection.
  bool Closes(int fd) {
    return Until([fd] {
      char byte;
      const ssize_t n = recv(fd, &byte, 1, 0);
      return n == 0 || (n < 0 && errno == ECONNRESET);
    });
  }

  TestCertificates certificates_;
  Side a_, b_, c_;
  Messenger::LinkId link_ = 0;
};

TEST_F(TlsMessages, OfEverySize_ArriveWholeAndInOrder) {
  std::vector<std::string> sent;
  const std::vector<size_t> sizes = {0, 1, 4096, 4097, 16 << 10, 1'000'001, 30'000'000};
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::string bytes(sizes[i], '\0');
    for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<char>(k * 7 + k / 251 + i);
    sent.push_back(std::move(bytes));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    a_.messenger->Send(link_, std::string(i * 150 + 1, 'h'),
                       {sent[i].data(), sizes[i], MemoryPlace::kHost, i});
  }
  ASSERT_TRUE(Until([&] { return b_.heard.landed.size() + 1 == sizes.size(); }));
  EXPECT_THAT(b_.heard.messages, ElementsAre("h"));
  for (size_t i = 1; i < sizes.size(); ++i) {
    EXPECT_TRUE(b_.heard.landed[i - 1].second.ok());
    EXPECT_TRUE(*b_.heard.payloads[i - 1] == sent[i]) << sizes[i] << " bytes";
    EXPECT_EQ(b_.heard.payload_headers[i - 1], std::string(i * 150 + 1, 'h'));
    EXPECT_TRUE(a_.heard.sent.at(i).ok());
  }
  EXPECT_THAT(a_.messenger->Transports(link_), ElementsAre("tls"));
}

TEST_F(TlsMessages, WithARefusedPayload_GoOnBehindIt) {
  const std::string payload(3'000'000, 'x');
  b_.heard.refuses = true;
  a_.messenger->Send(link_, "refused", {payload.data(), payload.size(), MemoryPlace::kHost, 1});
  EXPECT_TRUE(Arrives("behind it"));
  EXPECT_THAT(b_.heard.payload_headers, ElementsAre("refused"));
  EXPECT_TRUE(a_.heard.sent.at(1).ok());
  b_.heard.refuses = false;
  b_.heard.place = MemoryPlace::kDevice;  // as if a device's memory could be had this way
  a_.messenger->Send(link_, "device", {payload.data(), payload.size(), MemoryPlace::kHost, 2});
  EXPECT_TRUE(Arrives("behind that"));
  ASSERT_THAT(b_.heard.landed, SizeIs(1));
  EXPECT_TRUE(absl::IsInternal(b_.heard.landed[0].second));
}

TEST_F(TlsMessages, OfAProcessThatEnds_FailAtBothSides) {
  ASSERT_TRUE(Arrives("before"));
  const Messenger::LinkId back = *b_.messenger->Connect(a_.messenger->address());
  b_.messenger->Send(back, "hello", {});
  ASSERT_TRUE(Until([&] { return !a_.heard.messages.empty(); }));
  const std::string payload(50'000'000, 'x');
  a_.messenger->Send(link_, "large", {payload.data(), payload.size(), MemoryPlace::kHost, 7});
  ASSERT_TRUE(Until([&] { return !b_.heard.payload_headers.empty(); }));
  a_.messenger.reset();
  EXPECT_TRUE(absl::IsCancelled(a_.heard.sent.at(7)));
  ASSERT_TRUE(Until([&] { return !b_.heard.failed.empty() && !b_.heard.landed.empty(); }));
  EXPECT_EQ(b_.heard.failed[0].first, back);
  EXPECT_TRUE(absl::IsUnavailable(b_.heard.landed[0].second));
  b_.messenger->Send(back, "late", {payload.data(), 1, MemoryPlace::kHost, 8});
  ASSERT_TRUE(Until([&] { return b_.heard.sent.count(8) > 0; }));
  EXPECT_TRUE(absl::IsUnavailable(b_.heard.sent.at(8)));
}

TEST_F(TlsMessages, OfAForeignAuthority_AreRefusedByBothSides) {
  const TestCertificates foreign;
  Open(&c_, foreign.Add("worker", "weft://worker/a"));
  const Messenger::LinkId to_b = *c_.messenger->Connect(b_.messenger->address());
  c_.messenger->Send(to_b, "let me in", {});
  ASSERT_TRUE(Until([&] { return !c_.heard.failed.empty() && !b_.log.empty(); }));
  EXPECT_THAT(c_.heard.failed[0].second, HasSubstr("certificate"));
  EXPECT_THAT(b_.log[0], HasSubstr("a connection to the data plane from 127.0.0.1 is refused"));
  // It cannot pose as a peer either.
  const Messenger::LinkId to_c = *a_.messenger->Connect(c_.messenger->address());
  a_.messenger->Send(to_c, "a secret", {});
  ASSERT_TRUE(Until([&] { return !a_.heard.failed.empty(); }));
  EXPECT_EQ(a_.heard.failed[0].first, to_c);
  EXPECT_THAT(b_.heard.messages, IsEmpty());
  EXPECT_THAT(c_.heard.messages, IsEmpty());
  EXPECT_TRUE(Arrives("still here"));
}

TEST_F(TlsMessages, OfTheSameAuthorityButNoWorker_AreRefusedByBothSides) {
  Open(&c_, certificates_.Add("submitter", "weft://submitter/alice"));
  const Messenger::LinkId to_b = *c_.messenger->Connect(b_.messenger->address());
  c_.messenger->Send(to_b, "let me in", {});
  ASSERT_TRUE(Until([&] { return !c_.heard.failed.empty() && !b_.log.empty(); }));
  EXPECT_THAT(b_.log[0], HasSubstr("its certificate is not a worker's"));
  a_.messenger->Send(*a_.messenger->Connect(c_.messenger->address()), "a secret", {});
  ASSERT_TRUE(Until([&] { return !a_.heard.failed.empty(); }));
  EXPECT_THAT(a_.heard.failed[0].second, HasSubstr("is not a worker's"));
  EXPECT_THAT(b_.heard.messages, IsEmpty());
  EXPECT_THAT(c_.heard.messages, IsEmpty());
}

TEST_F(TlsMessages, AmongGarbage_Arrive) {
  for (const std::string& garbage : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\0'),
                                     std::string("\x16\x03\x01\xff\xff"), std::string(16, '\xff')}) {
    const int fd = ConnectToB();
    send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    EXPECT_TRUE(Closes(fd)) << garbage.size() << " bytes";
    EXPECT_TRUE(Arrives(std::to_string(garbage.size())));
    close(fd);
  }
}

TEST_F(TlsMessages, AmongConnectionsThatSayNothing_Arrive) {
  ASSERT_TRUE(Arrives("before"));
  constexpr int kSilent = 200;
  std::vector<int> silent;
  for (int i = 0; i < kSilent; ++i) {
    silent.push_back(ConnectToB());
    b_.messenger->Progress();
  }
  link_ = *a_.messenger->Connect(b_.messenger->address());
  EXPECT_TRUE(Arrives("through the crowd"));
  EXPECT_TRUE(Closes(silent.front())) << "few are kept that have not ended their handshake";
  EXPECT_TRUE(Closes(silent.back())) << "and none for long";
  for (const int fd : silent) close(fd);
}

TEST_F(TlsMessages, OfAWorkerThatSendsNonsense_EndItsConnectionOnly) {
  TlsOptions options;
  options.newest_only = true;
  const auto endpoint = TlsEndpoint::Start(certificates_.Add("d", "weft://worker/d"), options, {});
  ASSERT_TRUE(endpoint.ok());
  for (const FrameLengths& lengths : {FrameLengths{0, 0}, FrameLengths{Messenger::kMaxHeaderBytes + 1, 0},
                                      FrameLengths{0xffffffff, 0}, FrameLengths{1, ~uint64_t{0}}}) {
    std::string frame;
    AppendLengths(lengths, &frame);
    frame += std::string(100, 'x');
    const int fd = ConnectToB();
    const std::unique_ptr<TlsConnection> tls = (*endpoint)->Connect(fd);
    ASSERT_TRUE(Until([&] { return tls->Write(frame.data(), frame.size()) > 0; }));
    char byte;
    EXPECT_TRUE(Until([&] {
      const ssize_t n = tls->Read(&byte, 1);
      return n == 0 || (n < 0 && errno != EAGAIN);
    })) << lengths.header;
    close(fd);
  }
  EXPECT_THAT(b_.heard.messages, IsEmpty());
  EXPECT_TRUE(Arrives("still here"));
}

TEST_F(TlsMessages, BehindNewCertificates_AreOfNewConnections) {
  ASSERT_TRUE(Arrives("before"));
  const TestCertificates next;
  const std::string of_next = next.Add("b", "weft://worker/b");
  Open(&c_, next.Add("c", "weft://worker/c"));
  // The folder of b is replaced by that of another authority.
  const std::string folder =
      std::filesystem::path(certificates_.Add("b2", "weft://worker/b")).parent_path() / "b";
  for (const char* name : {"ca.crt", "tls.key", "tls.crt"}) {
    std::filesystem::copy_file(of_next + "/" + name, folder + "/" + name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  ASSERT_TRUE(Until([&] {
    c_.heard.failed.clear();
    c_.messenger->Send(*c_.messenger->Connect(b_.messenger->address()), "new", {});
    return Until([&] { return !c_.heard.failed.empty() || b_.heard.messages.size() > 1; }) &&
           b_.heard.messages.back() == "new";
  }));
  EXPECT_TRUE(Arrives("an open connection goes on"));
}

TEST_F(TlsMessages, Closed_AreDeliveredFirst) {
  const std::string payload(20'000'000, 'x');
  a_.messenger->Send(link_, "last", {payload.data(), payload.size(), MemoryPlace::kHost, 1});
  bool closed = false;
  std::thread closing([&] {
    a_.messenger->Close(MonotonicNow() + 30 * kSecond);
    closed = true;
  });
  for (const int64_t end = MonotonicNow() + 30 * kSecond; b_.heard.landed.empty() && MonotonicNow() < end;) {
    b_.messenger->Progress();
  }
  closing.join();
  EXPECT_TRUE(closed);
  ASSERT_THAT(b_.heard.landed, SizeIs(1));
  EXPECT_TRUE(b_.heard.landed[0].second.ok());
}

TEST_F(TlsMessages, ToAnAddressThatIsNone_AreRefused) {
  for (const char* bad : {"", "unix:/tmp/x", "localhost:1", "10.0.0.1", "10.0.0.1:1,nonsense"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(a_.messenger->Connect(bad).status())) << bad;
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(a_.messenger->Connect("[2001:db8::1]:7").status()) ||
              b_.messenger->address().find('[') != std::string::npos)
      << "an address of a family that this side does not have";
}

TEST(TlsNetworks, WithPorts_ListenOnTheFirstThatIsFree) {
  Heard heard;
  TlsNetwork network = testing::LoopbackNetworkWith(testing::SharedWorkerCertificates());
  const auto any = CreateTlsMessenger(network, &heard);
  ASSERT_TRUE(any.ok()) << any.status();
  const std::string address = (*any)->address();
  const int taken = ParseAddress(address.substr(0, address.find(',')))->port;
  network.ports = {taken, taken + 50};
  const auto next = CreateTlsMessenger(network, &heard);
  ASSERT_TRUE(next.ok()) << next.status();
  const std::string own = (*next)->address();
  const int port = ParseAddress(own.substr(0, own.find(',')))->port;
  EXPECT_GT(port, taken);
  EXPECT_LE(port, taken + 50);
  network.ports = {taken, taken};
  EXPECT_TRUE(absl::IsUnavailable(CreateTlsMessenger(network, &heard).status()));
}

TEST(TlsNetworks, WithoutAnAddress_AreUnavailable) {
  Heard heard;
  TlsNetwork network = testing::LoopbackNetworkWith(testing::SharedWorkerCertificates());
  network.interfaces = "nosuch0";
  const auto messenger = CreateTlsMessenger(network, &heard);
  EXPECT_TRUE(absl::IsUnavailable(messenger.status()));
  EXPECT_THAT(std::string(messenger.status().message()), HasSubstr("nosuch0 has no address"));
  network = testing::LoopbackNetworkWith("/nonexistent");
  EXPECT_TRUE(absl::IsFailedPrecondition(CreateTlsMessenger(network, &heard).status()));
}

// One key encrypts a bounded number of bytes.
TEST(TlsConnections, WithManyBytes_ChangeTheirKeyAndGoOn) {
  const TestCertificates certificates;
  TlsOptions options;
  options.newest_only = true;
  options.key_bytes = 100'000;
  const auto endpoint = TlsEndpoint::Start(certificates.Add("worker", "weft://worker/a"), options, {});
  ASSERT_TRUE(endpoint.ok());
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  const auto server = (*endpoint)->Accept(fds[0]), client = (*endpoint)->Connect(fds[1]);
  std::string sent(2'000'000, '\0'), got;
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 31 + i / 256);
  std::string piece(1 << 16, '\0');
  size_t at = 0;
  for (const int64_t end = MonotonicNow() + 30 * kSecond; got.size() < sent.size() && MonotonicNow() < end;) {
    if (at < sent.size()) {
      const ssize_t written = client->Write(sent.data() + at, sent.size() - at);
      at += written > 0 ? static_cast<size_t>(written) : 0;
    } else {
      client->Flush();
    }
    const ssize_t read = server->Read(piece.data(), piece.size());
    if (read > 0) got.append(piece.data(), static_cast<size_t>(read));
  }
  EXPECT_TRUE(got == sent);
  EXPECT_THAT(server->peer_uris(), ElementsAre("weft://worker/a"));
  EXPECT_THAT(client->peer_uris(), ElementsAre("weft://worker/a"));
  for (const int fd : fds) close(fd);
}

// A layer for processes that share memory, which reaches nobody.
class LonelyMessenger final : public Messenger {
 public:
  explicit LonelyMessenger(int* connects) : connects_(connects), fd_(eventfd(0, EFD_CLOEXEC)) {}
  ~LonelyMessenger() override { close(fd_); }
  const std::string& address() const override { return address_; }
  absl::StatusOr<LinkId> Connect(absl::string_view) override {
    ++*connects_;
    return absl::FailedPreconditionError("no way leads there");
  }
  void Disconnect(LinkId) override {}
  void Send(LinkId, absl::string_view, const Payload&) override {}
  std::vector<std::string> Transports(LinkId) const override { return {}; }
  int Progress() override { return 0; }
  int event_fd() const override { return fd_; }
  bool Arm() override { return true; }
  void Close(int64_t) override {}

 private:
  int* const connects_;
  const int fd_;
  const std::string address_ = "lonely";
};

TEST(LayeredMessages, ToAMachineThatMayShareMemory_TryThatFirst) {
  int tried = 0;
  const OpenLayer near = [&](Messenger::Handler*) -> absl::StatusOr<std::unique_ptr<Messenger>> {
    return std::make_unique<LonelyMessenger>(&tried);
  };
  const OpenLayer far = [](Messenger::Handler* handler) {
    return CreateTlsMessenger(testing::LoopbackNetworkWith(testing::SharedWorkerCertificates()), handler);
  };
  Heard a, b, c;
  const auto first = OpenLayeredMessenger("here", near, far, &a),
             second = OpenLayeredMessenger("here", near, far, &b),
             third = OpenLayeredMessenger("there", near, far, &c);
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_TRUE((*first)->Connect((*third)->address()).ok());
  EXPECT_EQ(tried, 0);
  const auto link = (*first)->Connect((*second)->address());
  ASSERT_TRUE(link.ok());
  EXPECT_EQ(tried, 1);
  (*first)->Send(*link, "by the second way", {});
  for (const int64_t end = MonotonicNow() + 30 * kSecond; b.messages.empty() && MonotonicNow() < end;) {
    (*first)->Progress();
    (*second)->Progress();
  }
  EXPECT_THAT(b.messages, ElementsAre("by the second way"));
  for (size_t bytes : {size_t{0}, size_t{3}, size_t{9}}) {
    EXPECT_TRUE(absl::IsInvalidArgument((*first)->Connect((*second)->address().substr(0, bytes)).status()));
  }
}

}  // namespace
}  // namespace weft::tls_messenger_test
