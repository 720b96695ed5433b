#include "base/metrics/certificate_metrics.h"

#include <utility>

#include "base/certificates/certificate_folder.h"

namespace weft {

CertificateMetrics::CertificateMetrics(Metrics* metrics, std::string folder)
    : folder_(std::move(folder)),
      expiry_(metrics->AddGauge("weft_certificate_expiry_timestamp_seconds",
                                "End of the validity of the certificate in the folder of --tls.")),
      usable_(metrics->AddGauge("weft_certificate_usable",
                                "1 if the files in the folder of --tls fit together and are valid.")) {}

void CertificateMetrics::Refresh() {
  const auto content = ReadCertificateFolder(folder_, OwnCertificate::kRequired);
  usable_.Set(content.ok() ? 1 : 0);
  if (content.ok()) expiry_.Set(static_cast<double>(content->expires));
}

}  // namespace weft
