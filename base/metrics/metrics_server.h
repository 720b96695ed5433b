// Serves a process's metrics over HTTP: GET /metrics for Prometheus, GET /healthz for probes; and pages of
// the process, if it has any.
//
// One thread takes all connections, without blocking on any: a client that is slow, idle or never finishes
// its request holds a descriptor and nothing else, for five seconds. A connection serves one request.
// cpp-httplib parses and answers; its own threads would wait for slow clients. The exposer of prometheus-cpp
// is not used either: its threads have stacks too small for a process that has loaded cuBLAS
// (docs/decisions). On loopback it is plain HTTP, for probes and a Prometheus beside it. Elsewhere it has
// TLS, and a client shows a certificate that may read. Ownership: destruction stops it; `metrics` outlives
// it.
#ifndef WEFT_BASE_METRICS_METRICS_SERVER_H_
#define WEFT_BASE_METRICS_METRICS_SERVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/certificates/certificate_watch.h"
#include "base/metrics/metrics.h"
#include "base/net/security_flags.h"

namespace weft {

// An answer to GET, and its type: "text/html; charset=utf-8".
struct HttpPage {
  std::string type, body;
};
// Returns the page of a path, "/runs/3"; nothing where there is none.
using HttpPages = std::function<std::optional<HttpPage>(const std::string& path)>;
// Terms under which other machines may read the metrics.
struct MetricsReaders {
  SecurityFlags security;
  // Returns true if a client whose certificate has these URIs may read the page of that path.
  std::function<bool(const std::vector<std::string>& uris, absl::string_view path)> may_read;
  CertificateWatch::Observer certificates;  // hear of new ones, on another thread
};

class MetricsServer {
 public:
  virtual ~MetricsServer() = default;

  // Starts serving. `address` is HOST:PORT, with port 0 for any. `healthy` returns "" or why the process is
  // not healthy; without it the process counts as healthy. `refresh` is called before a scrape, `pages` for
  // every other path. They run on the server's thread, which they must not hold. InvalidArgument,
  // FailedPrecondition (it needs TLS where there is none, or wrong certificates), Unavailable (in use).
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              const Metrics* metrics,
                                                              const MetricsReaders& readers = {},
                                                              std::function<std::string()> healthy = nullptr,
                                                              std::function<void()> refresh = nullptr,
                                                              HttpPages pages = nullptr);

  virtual int port() const = 0;
};

}  // namespace weft

#endif  // WEFT_BASE_METRICS_METRICS_SERVER_H_
