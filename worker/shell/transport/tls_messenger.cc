#include "worker/shell/transport/tls_messenger.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/monotonic_clock.h"
#include "base/net/listener.h"
#include "worker/shell/transport/peer_filter.h"
#include "worker/shell/transport/tls_receiver.h"

namespace weft {
namespace {

constexpr size_t kBudget = 1 << 20;      // bytes of one connection in one Progress
constexpr size_t kReadAhead = 64 << 10;  // bytes that are asked of a socket at once
constexpr int kEvents = 64;              // events of one Progress
constexpr int kAccepted = 64;            // connections that are taken in one Progress
constexpr size_t kMaxHandshakes = 64;    // connections that are not trusted yet
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kHandshakeTime = 10 * kSecond;
constexpr int64_t kLogPause = 10 * kSecond;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress NumericAddress(const Address& address) {
  SocketAddress result;
  auto* ipv4 = reinterpret_cast<sockaddr_in*>(&result.storage);
  auto* ipv6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
  if (inet_pton(AF_INET, address.host.c_str(), &ipv4->sin_addr) == 1) {
    ipv4->sin_family = AF_INET;
    ipv4->sin_port = htons(static_cast<uint16_t>(address.port));
    result.size = sizeof *ipv4;
  } else if (inet_pton(AF_INET6, address.host.c_str(), &ipv6->sin6_addr) == 1) {
    ipv6->sin6_family = AF_INET6;
    ipv6->sin6_port = htons(static_cast<uint16_t>(address.port));
    result.size = sizeof *ipv6;
  }
  return result;
}

// Returns the bytes of a numeric address (peer_filter.h); "" for a name.
std::string BytesOf(const Address& address) { return AddressBytes(NumericAddress(address).storage); }

// Returns how many leading bits two addresses have in common, of IPv4 four times as many; -1 if they are not
// of one family.
int CommonBits(const std::string& a, const std::string& b) {
  if (a.size() != b.size() || a.empty()) return -1;
  const int weight = static_cast<int>(sizeof(in6_addr) / a.size());
  int bits = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto differing = static_cast<uint8_t>(a[i] ^ b[i]);
    if (differing != 0) return (bits + std::countl_zero(differing)) * weight;
    bits += 8;
  }
  return bits * weight;
}

// Returns the text of an interface's address; "" for one by which no other machine's process can be reached
// without more words.
std::string TextOf(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& ipv6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&ipv6)) return "";
    inet_ntop(AF_INET6, &ipv6, text.data(), text.size());
  }
  return text.data();
}

void SetOptions(int fd, int64_t timeout_ns) {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout_ns / 1'000'000));
}

std::string PeerOf(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "an address that is gone";
  return TextOf(reinterpret_cast<const sockaddr*>(&peer));
}

class TlsMessenger final : public Messenger {
 public:
  TlsMessenger(const TlsNetwork& network, Handler* handler) : network_(network), handler_(handler) {}
  ~TlsMessenger() override {
    // The handler hears of everything that was under way.
    for (std::unique_ptr<TlsSender>& link : links_) link.reset();
    receivers_.clear();
    DeliverSent();
    if (epoll_ >= 0) close(epoll_);
  }

  absl::Status Open();

  const std::string& address() const override { return address_; }
  absl::StatusOr<LinkId> Connect(absl::string_view address) override;
  void Disconnect(LinkId link) override;
  void Send(LinkId link, absl::string_view header, const Payload& payload) override;
  std::vector<std::string> Transports(LinkId link) const override {
    return links_[link] == nullptr ? std::vector<std::string>() : std::vector<std::string>{"tls"};
  }
  int Progress() override;
  int event_fd() const override { return epoll_; }
  bool Arm() override { return ready_.empty() && sent_.empty() && failed_.empty(); }
  void Close(int64_t deadline) override;

 private:
  absl::Status Listen();

  // Tags of descriptors in the epoll set: the listening sockets, then senders and receivers by number.
  enum : uint64_t { kListener = 0, kSenders = uint64_t{1} << 32, kReceivers = uint64_t{2} << 32 };
  static constexpr uint64_t kNumber = 0xffffffff, kKind = ~kNumber;

  void Watch(int operation, int fd, uint64_t tag, bool writes);
  const Address* Nearest(const std::vector<Address>& addresses) const;
  int ProgressSender(LinkId link);
  int ProgressReceiver(uint32_t number);
  int TakeConnections();
  void EndSlowHandshakes();
  void Refuse(const TlsReceiver& receiver);
  int DeliverSent();
  int ReportFailed();

  const TlsNetwork network_;
  Handler* const handler_;
  std::unique_ptr<TlsEndpoint> tls_;
  std::unique_ptr<Listener> listener_;
  std::string address_;
  int epoll_ = -1;
  std::vector<std::unique_ptr<TlsSender>> links_;  // null once closed
  absl::btree_map<uint32_t, std::unique_ptr<TlsReceiver>> receivers_;
  absl::btree_map<uint32_t, int64_t> handshakes_;  // receivers that are not trusted yet, with their deadlines
  uint32_t next_receiver_ = 0;
  absl::btree_set<uint64_t> ready_;  // tags that have something to do without an event
  std::vector<SentPayload> sent_;    // payloads of which the handler is to hear
  std::vector<LinkId> failed_;
  int64_t next_log_ = 0;
};

absl::Status TlsMessenger::Open() {
  CertificateWatch::Observer observer;
  observer.refused = [log = network_.log](const absl::Status& why) {
    if (log) log(absl::StrCat("new certificates for the data plane are not taken: ", why.message()));
  };
  TlsOptions options;
  options.newest_only = true;
  options.read_ahead = kReadAhead;
  auto tls = TlsEndpoint::Start(network_.certificates, options, std::move(observer));
  if (!tls.ok()) return tls.status();
  tls_ = *std::move(tls);
  if (absl::Status status = Listen(); !status.ok()) return status;
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return absl::ResourceExhaustedError(absl::StrCat("epoll: ", std::strerror(errno)));
  std::vector<pollfd> sockets;
  listener_->AddTo(&sockets);
  for (const pollfd& socket : sockets) Watch(EPOLL_CTL_ADD, socket.fd, kListener, /*writes=*/false);
  return absl::OkStatus();
}

absl::Status TlsMessenger::Listen() {
  std::vector<Address> addresses;
  for (const std::string& host : AddressesOfInterfaces(network_.interfaces)) {
    Address address;
    address.host = host;
    addresses.push_back(address);
  }
  if (addresses.empty()) {
    return absl::UnavailableError(absl::StrCat("the data plane has no network: ", network_.interfaces,
                                               " has no address; see --data-network"));
  }
  absl::Status status;
  for (int port = network_.ports.first; port <= network_.ports.last; ++port) {
    for (Address& address : addresses) address.port = port;
    absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Open(addresses);
    if (listener.ok()) {
      listener_ = *std::move(listener);
      address_ = weft::TextOf(listener_->addresses());
      return absl::OkStatus();
    }
    status = listener.status();
  }
  if (network_.ports.first == network_.ports.last) return status;
  return absl::UnavailableError(absl::StrCat("no port from ", network_.ports.first, " to ",
                                             network_.ports.last,
                                             " is free for the data plane; see --data-ports"));
}

void TlsMessenger::Watch(int operation, int fd, uint64_t tag, bool writes) {
  epoll_event event{};
  event.events = EPOLLIN | (writes ? EPOLLOUT : 0u);
  event.data.u64 = tag;
  epoll_ctl(epoll_, operation, fd, &event);
}

// Returns the address in the network that this side shares; else the first one of a family that it has.
const Address* TlsMessenger::Nearest(const std::vector<Address>& addresses) const {
  const Address* nearest = nullptr;
  int most = -1;
  for (const Address& address : addresses) {
    for (const Address& own : listener_->addresses()) {
      const int bits = CommonBits(BytesOf(address), BytesOf(own));
      if (bits <= most) continue;
      most = bits;
      nearest = &address;
    }
  }
  return nearest;
}

absl::StatusOr<Messenger::LinkId> TlsMessenger::Connect(absl::string_view text) {
  std::vector<Address> addresses;
  for (const absl::string_view one : absl::StrSplit(text, ',')) {
    absl::StatusOr<Address> address = ParseAddress(one);
    if (!address.ok() || address->is_unix || BytesOf(*address).empty()) {
      return absl::InvalidArgumentError("its address is not of this version of Weft's data plane over TLS");
    }
    addresses.push_back(*std::move(address));
  }
  const Address* const nearest = Nearest(addresses);
  if (nearest == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("connecting: no network of this process (", address_, ") leads to ", text));
  }
  const SocketAddress to = NumericAddress(*nearest);
  const int fd = socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("connecting: ", std::strerror(errno)));
  SetOptions(fd, network_.timeout_ns);
  if (connect(fd, to.get(), to.size) != 0 && errno != EINPROGRESS) {
    const std::string why = std::strerror(errno);
    close(fd);
    return absl::UnavailableError(absl::StrCat("connecting to ", nearest->text(), ": ", why));
  }
  const auto id = static_cast<LinkId>(links_.size());
  links_.push_back(std::make_unique<TlsSender>(fd, tls_->Connect(fd), &network_.trusts, &sent_));
  Watch(EPOLL_CTL_ADD, fd, kSenders | id, /*writes=*/true);
  return id;
}

void TlsMessenger::Disconnect(LinkId link) { links_[link].reset(); }

void TlsMessenger::Send(LinkId id, absl::string_view header, const Payload& payload) {
  TlsSender* const link = links_[id].get();
  if (link == nullptr) {
    if (payload.bytes > 0)
      sent_.push_back({payload.token, absl::UnavailableError("the connection is closed")});
    return;
  }
  const bool behind_others = link->busy();
  link->Send(header, payload);
  if (!behind_others) ProgressSender(id);
}

int TlsMessenger::ProgressSender(LinkId id) {
  TlsSender* const link = links_[id].get();
  if (link == nullptr || !link->failure().ok()) return 0;
  const bool was_blocked = link->blocked();
  const size_t done = link->Progress(kBudget);
  if (!link->failure().ok()) {
    failed_.push_back(id);
    return 1;
  }
  if (link->blocked() != was_blocked) Watch(EPOLL_CTL_MOD, link->fd(), kSenders | id, link->blocked());
  if (link->busy() && done >= kBudget) ready_.insert(kSenders | id);
  return done > 0;
}

int TlsMessenger::ProgressReceiver(uint32_t number) {
  const auto found = receivers_.find(number);
  if (found == receivers_.end()) return 0;
  TlsReceiver& receiver = *found->second;
  const bool was_blocked = receiver.blocked();
  const size_t done = receiver.Progress(kBudget);
  if (receiver.trusted()) handshakes_.erase(number);
  if (receiver.over()) {
    if (!receiver.trusted()) Refuse(receiver);
    handshakes_.erase(number);
    receivers_.erase(found);
    return 1;
  }
  if (receiver.blocked() != was_blocked) {
    Watch(EPOLL_CTL_MOD, receiver.fd(), kReceivers | number, receiver.blocked());
  }
  if (done >= kBudget) ready_.insert(kReceivers | number);
  return done > 0;
}

int TlsMessenger::TakeConnections() {
  int taken = 0;
  for (int fd = listener_->Accept(); fd >= 0; fd = taken < kAccepted ? listener_->Accept() : -1) {
    ++taken;
    // The newest is served: among so many, one that has not ended its handshake is slow.
    if (handshakes_.size() >= kMaxHandshakes) {
      receivers_.erase(handshakes_.begin()->first);
      handshakes_.erase(handshakes_.begin());
    }
    SetOptions(fd, network_.timeout_ns);
    const uint32_t number = next_receiver_++;
    const int64_t deadline = MonotonicNow() + kHandshakeTime;
    receivers_[number] =
        std::make_unique<TlsReceiver>(fd, tls_->Accept(fd), deadline, &network_.trusts, handler_);
    handshakes_[number] = deadline;
    Watch(EPOLL_CTL_ADD, fd, kReceivers | number, /*writes=*/false);
  }
  return taken;
}

void TlsMessenger::EndSlowHandshakes() {
  const int64_t now = MonotonicNow();
  // Numbers are in the order of their deadlines.
  while (!handshakes_.empty() && handshakes_.begin()->second <= now) {
    TlsReceiver& slow = *receivers_.at(handshakes_.begin()->first);
    slow.End("it has not ended its handshake");
    Refuse(slow);
    receivers_.erase(handshakes_.begin()->first);
    handshakes_.erase(handshakes_.begin());
  }
}

void TlsMessenger::Refuse(const TlsReceiver& receiver) {
  const int64_t now = MonotonicNow();
  if (!network_.log || now < next_log_) return;
  next_log_ = now + kLogPause;
  network_.log(absl::StrCat("a connection to the data plane from ", PeerOf(receiver.fd()),
                            " is refused: ", receiver.problem()));
}

int TlsMessenger::DeliverSent() {
  std::vector<SentPayload> sent;
  sent.swap(sent_);
  for (const SentPayload& payload : sent) handler_->OnSent(payload.token, payload.status);
  return static_cast<int>(sent.size());
}

int TlsMessenger::ReportFailed() {
  std::vector<LinkId> failed;
  failed.swap(failed_);
  for (const LinkId id : failed) {
    if (links_[id] == nullptr) continue;
    const absl::Status cause = links_[id]->failure();
    links_[id].reset();
    handler_->OnLinkFailed(id, cause);
  }
  return static_cast<int>(failed.size());
}

int TlsMessenger::Progress() {
  std::array<epoll_event, kEvents> events;
  const int n = epoll_wait(epoll_, events.data(), kEvents, 0);
  absl::btree_set<uint64_t> now;
  now.swap(ready_);
  for (int i = 0; i < n; ++i) now.insert(events[static_cast<size_t>(i)].data.u64);
  int done = 0;
  for (const uint64_t tag : now) {
    const auto number = static_cast<uint32_t>(tag & kNumber);
    switch (tag & kKind) {
      case kSenders:
        done += ProgressSender(number);
        break;
      case kReceivers:
        done += ProgressReceiver(number);
        break;
      default:
        done += TakeConnections();
    }
  }
  if (!handshakes_.empty()) EndSlowHandshakes();
  done += ReportFailed();
  return done + DeliverSent();
}

void TlsMessenger::Close(int64_t deadline) {
  const auto busy = [this] {
    return std::any_of(links_.begin(), links_.end(),
                       [](const auto& link) { return link != nullptr && link->busy(); });
  };
  while (busy() && MonotonicNow() < deadline) {
    if (Progress() > 0 || !Arm()) continue;
    constexpr int kPollMilliseconds = 10;
    pollfd wake{epoll_, POLLIN, 0};
    poll(&wake, 1, kPollMilliseconds);
  }
  for (std::unique_ptr<TlsSender>& link : links_) link.reset();
  DeliverSent();
}

}  // namespace

std::vector<std::string> AddressesOfInterfaces(const std::string& interfaces) {
  const std::vector<std::string> names = absl::StrSplit(interfaces, ',');
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  std::vector<std::string> addresses;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    const bool named = std::find(names.begin(), names.end(), i->ifa_name) != names.end();
    const bool other = interfaces == "all" && (i->ifa_flags & IFF_LOOPBACK) == 0;
    if ((!named && !other) || (i->ifa_flags & IFF_UP) == 0) continue;
    std::string text = TextOf(i->ifa_addr);
    if (!text.empty()) addresses.push_back(std::move(text));
  }
  freeifaddrs(all);
  return addresses;
}

absl::StatusOr<std::unique_ptr<Messenger>> CreateTlsMessenger(const TlsNetwork& network,
                                                              Messenger::Handler* handler) {
  auto messenger = std::make_unique<TlsMessenger>(network, handler);
  if (absl::Status status = messenger->Open(); !status.ok()) return status;
  return std::unique_ptr<Messenger>(std::move(messenger));
}

}  // namespace weft
