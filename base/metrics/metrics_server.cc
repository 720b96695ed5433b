#include "base/metrics/metrics_server.h"

#include <errno.h>
#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/certificates/tls_endpoint.h"
#include "base/monotonic_clock.h"
#include "base/net/address.h"
#include "base/net/listener.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr size_t kMaxHeadBytes = 8 << 10;
constexpr size_t kMaxConnections = 128;
// Time from a connection's beginning to the last byte of its answer.
constexpr int64_t kRequestNs = 5'000'000'000;

// A whole request, and the place for its answer.
class MemoryStream final : public httplib::Stream {
 public:
  explicit MemoryStream(const std::string& in) : in_(in) {}
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* data, size_t size) override {
    const size_t n = std::min(size, in_.size() - read_);
    std::memcpy(data, in_.data() + read_, n);
    read_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* data, size_t size) override {
    out.append(data, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

  std::string out;

 private:
  const std::string& in_;
  size_t read_ = 0;
};

// The library's part: it parses requests, calls handlers and writes answers, without sockets or threads.
class Responder final : public httplib::Server {
 public:
  std::string Answer(const std::string& request) {
    MemoryStream stream(request);
    bool closed = false;
    process_request(stream, /*close_connection=*/true, closed, nullptr);
    return std::move(stream.out);
  }
};

struct Connection {
  int fd = -1;
  int64_t deadline = 0;
  std::unique_ptr<TlsConnection> tls;  // null for a plain one
  std::string in, out;
  size_t written = 0;

  ssize_t Read(void* to, size_t size) const {
    return tls != nullptr ? tls->Read(to, size) : recv(fd, to, size, 0);
  }
  ssize_t Write(const void* from, size_t size) const {
    return tls != nullptr ? tls->Write(from, size) : send(fd, from, size, MSG_NOSIGNAL);
  }
  // Returns what it waits for.
  short events() const {
    const bool writes = tls != nullptr ? tls->wants_write() : !out.empty();
    return writes ? POLLOUT : POLLIN;
  }
};

constexpr char kForbidden[] =
    "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 40\r\n\r\n"
    "this certificate may not read this page\n";

class HttpMetricsServer final : public MetricsServer {
 public:
  HttpMetricsServer(const Metrics* metrics, MetricsReaders readers, std::function<std::string()> healthy,
                    std::function<void()> refresh, HttpPages pages)
      : stop_(eventfd(0, EFD_CLOEXEC)), readers_(std::move(readers)) {
    http_.Get("/metrics",
              [metrics, refresh = std::move(refresh)](const httplib::Request&, httplib::Response& response) {
                if (refresh) refresh();
                response.set_content(metrics->Text(), "text/plain; version=0.0.4; charset=utf-8");
              });
    http_.Get("/healthz",
              [healthy = std::move(healthy)](const httplib::Request&, httplib::Response& response) {
                const std::string why = healthy ? healthy() : "";
                response.status = why.empty() ? 200 : 503;
                response.set_content(why.empty() ? "ok\n" : absl::StrCat(why, "\n"), "text/plain");
              });
    if (pages == nullptr) return;
    http_.Get("/.*",
              [pages = std::move(pages)](const httplib::Request& request, httplib::Response& response) {
                std::optional<HttpPage> page = pages(request.path);
                response.status = page.has_value() ? 200 : 404;
                if (!page.has_value()) return;
                // A page takes nothing from elsewhere, and runs no script but the one that is served here.
                response.set_header(
                    "Content-Security-Policy",
                    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
                    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
                response.set_header("X-Content-Type-Options", "nosniff");
                response.set_header("Cache-Control", "no-store");
                response.set_content(page->body, page->type);
              });
  }

  ~HttpMetricsServer() override {
    eventfd_write(stop_, 1);
    if (thread_.joinable()) thread_.join();
    for (const Connection& c : connections_) close(c.fd);
    close(stop_);
  }

  absl::Status Listen(const Address& address) {
    if (!address.loopback()) {
      const auto protection = ProtectionAt(address, readers_.security, "serve metrics on");
      if (!protection.ok()) return protection.status();
      if (*protection == Protection::kTls) {
        auto tls = TlsEndpoint::Start(readers_.security.tls, {}, readers_.certificates);
        if (!tls.ok()) return tls.status();
        tls_ = *std::move(tls);
      }
    }
    // It uses the descriptors that the process keeps in reserve: a probe is answered until none is left.
    auto listener = Listener::Open({address}, /*reserved=*/0);
    if (!listener.ok()) {
      return absl::Status(listener.status().code(), absl::StrCat("metrics: ", listener.status().message()));
    }
    listener_ = *std::move(listener);
    absl::StatusOr<std::thread> thread = TryStartThread([this] { Run(); });
    if (!thread.ok()) return thread.status();
    thread_ = *std::move(thread);
    return absl::OkStatus();
  }

  int port() const override { return listener_->addresses()[0].port; }

 private:
  void Run() {
    std::vector<pollfd> descriptors;
    while (true) {
      descriptors.assign(1, {stop_, POLLIN, 0});
      for (const Connection& c : connections_) {
        descriptors.push_back({c.fd, c.events(), 0});
      }
      listener_->AddTo(&descriptors);
      poll(descriptors.data(), descriptors.size(), Timeout());
      if (descriptors[0].revents != 0) return;
      size_t i = 1;
      const int64_t now = MonotonicNow();
      for (auto c = connections_.begin(); c != connections_.end(); ++i) {
        const bool ready = descriptors[i].revents != 0;
        if (now < c->deadline && (!ready || Serve(&*c))) {
          ++c;
        } else {
          close(c->fd);
          c = connections_.erase(c);
        }
      }
      TakeConnections(now);
    }
  }

  int Timeout() const {
    if (connections_.empty()) return -1;
    // Connections are in the order of their arrival.
    const int64_t remaining = (connections_.front().deadline - MonotonicNow()) / 1'000'000;
    return static_cast<int>(std::max<int64_t>(remaining, 0)) + 1;
  }

  void TakeConnections(int64_t now) {
    int taken = 0;
    for (int fd = listener_->Accept(); fd >= 0; fd = listener_->Accept()) {
      // The newest is served: among so many, a client that has not finished its request is slow.
      if (connections_.size() >= kMaxConnections) {
        close(connections_.front().fd);
        connections_.pop_front();
      }
      connections_.push_back({fd, now + kRequestNs, tls_ == nullptr ? nullptr : tls_->Accept(fd), {}, {}, 0});
      Connection& c = connections_.back();
      if (!Serve(&c)) {  // most requests have arrived whole
        close(fd);
        connections_.pop_back();
      }
      if (++taken == static_cast<int>(kMaxConnections)) return;
    }
  }

  // Reads the bytes that have come, and answers once the request is whole. Returns false when the connection
  // is over.
  bool Serve(Connection* c) {
    while (c->out.empty()) {
      char piece[4096];
      const ssize_t n = c->Read(piece, sizeof(piece));
      if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
      if (n == 0) return false;
      c->in.append(piece, static_cast<size_t>(n));
      if (absl::StrContains(c->in, "\r\n\r\n")) {
        c->out = MayRead(*c) ? http_.Answer(c->in) : kForbidden;
        if (c->out.empty()) return false;
      } else if (c->in.size() > kMaxHeadBytes) {
        return false;
      }
    }
    const ssize_t n = c->Write(c->out.data() + c->written, c->out.size() - c->written);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    c->written += static_cast<size_t>(n);
    return c->written < c->out.size() || (c->tls != nullptr && c->tls->wants_write());
  }

  // Takes the path as it was sent. The library may take another one for the same page, never one of these for
  // another page.
  bool MayRead(const Connection& c) const {
    if (c.tls == nullptr) return true;
    const std::vector<absl::string_view> words =
        absl::StrSplit(absl::string_view(c.in).substr(0, c.in.find("\r\n")), ' ');
    return words.size() == 3 && readers_.may_read && readers_.may_read(c.tls->peer_uris(), words[1]);
  }

  const int stop_;  // readable when the thread is to end
  const MetricsReaders readers_;
  std::unique_ptr<TlsEndpoint> tls_;  // null for plain HTTP
  Responder http_;
  std::unique_ptr<Listener> listener_;
  std::list<Connection> connections_;  // connections by age; only the thread uses them
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, const Metrics* metrics, const MetricsReaders& readers,
    std::function<std::string()> healthy, std::function<void()> refresh, HttpPages pages) {
  const absl::StatusOr<Address> a = ParseAddress(address);
  if (!a.ok()) return a.status();
  if (a->is_unix) return absl::InvalidArgumentError("metrics are served on HOST:PORT, not on a unix socket");
  auto server = std::make_unique<HttpMetricsServer>(metrics, readers, std::move(healthy), std::move(refresh),
                                                    std::move(pages));
  if (absl::Status s = server->Listen(*a); !s.ok()) return s;
  return std::unique_ptr<MetricsServer>(std::move(server));
}

}  // namespace weft
