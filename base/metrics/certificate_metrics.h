// Shows the state of a process's folder of certificates (base/certificates/certificate_folder.h) as metrics:
// until when its certificate is valid, and whether it could be used now. So an alert comes before connections
// are refused, and after an exchange that went wrong.
//
// Threads: Refresh by one at a time. `metrics` outlives it.
#ifndef WEFT_BASE_METRICS_CERTIFICATE_METRICS_H_
#define WEFT_BASE_METRICS_CERTIFICATE_METRICS_H_

#include <string>

#include "base/metrics/metrics.h"

namespace weft {

class CertificateMetrics {
 public:
  CertificateMetrics(Metrics* metrics, std::string folder);

  // Reads the folder.
  void Refresh();

 private:
  const std::string folder_;
  Gauge expiry_, usable_;
};

}  // namespace weft

#endif  // WEFT_BASE_METRICS_CERTIFICATE_METRICS_H_
