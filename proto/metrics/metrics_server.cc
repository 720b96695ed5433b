#include "proto/metrics/metrics_server.h"

#include <httplib.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/address.h"

namespace weft {
namespace {

class HttpMetricsServer final : public MetricsServer {
 public:
  HttpMetricsServer(const Metrics* metrics, std::function<std::string()> healthy,
                    std::function<void()> refresh) {
    // Two are enough for a scraper and a probe; an idle connection holds one for at most two seconds.
    http_.new_task_queue = [] { return new httplib::ThreadPool(2); };
    http_.set_keep_alive_timeout(2);
    http_.set_payload_max_length(1024);
    // The library's default shares the port with any other server.
    http_.set_socket_options([](int fd) {
      const int yes = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
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
  }

  ~HttpMetricsServer() override {
    http_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen(const Address& address) {
    port_ = address.port == 0 ? http_.bind_to_any_port(address.host.c_str())
                              : (http_.bind_to_port(address.host.c_str(), address.port) ? address.port : -1);
    if (port_ < 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot serve metrics on ", address.text(),
                       ": the address is in use or not of this machine; choose another one"));
    }
    thread_ = std::thread([this] { http_.listen_after_bind(); });
    // Stopping before it runs would be lost.
    for (int i = 0; i < 2000 && !http_.is_running(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  httplib::Server http_;
  int port_ = -1;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    const Metrics* metrics, bool insecure,
                                                                    std::function<std::string()> healthy,
                                                                    std::function<void()> refresh) {
  const absl::StatusOr<Address> a = ParseAddress(address);
  if (!a.ok()) return a.status();
  if (a->is_unix) return absl::InvalidArgumentError("metrics are served on HOST:PORT, not on a unix socket");
  if (!a->loopback() && !insecure) {
    return absl::FailedPreconditionError(
        absl::StrCat("refusing to serve metrics on ", address,
                     ": other machines could read them; use 127.0.0.1, or pass "
                     "--insecure on a network that you trust"));
  }
  auto server = std::make_unique<HttpMetricsServer>(metrics, std::move(healthy), std::move(refresh));
  if (absl::Status s = server->Listen(*a); !s.ok()) return s;
  return std::unique_ptr<MetricsServer>(std::move(server));
}

}  // namespace weft
