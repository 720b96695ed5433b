// Reads and checks a folder of certificates, in the form of a Kubernetes secret:
//
//   ca.crt    certificates of the authorities that the program trusts
//   tls.crt   its own certificate, with those between it and an authority behind it
//   tls.key   the key of tls.crt
//
// The parts that it returns match: the key is the certificate's, the certificate is valid now and comes from
// an authority of ca.crt. So a mistake is found here, with the file's name, and not in a handshake with a
// peer that only closes the connection.
//
// Failure: FailedPrecondition with the path, what is wrong with it, and what to do. Threads: any.
#ifndef WEFT_BASE_CERTIFICATES_CERTIFICATE_FOLDER_H_
#define WEFT_BASE_CERTIFICATES_CERTIFICATE_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft {

struct CertificateFolder {
  std::string authorities;        // PEM of ca.crt
  std::string identity;           // PEM of tls.crt and tls.key; "" without an own certificate
  std::vector<std::string> uris;  // URIs among the alternative names of tls.crt
  int64_t expires = 0;            // end of the validity of tls.crt, in seconds since 1970

  bool operator==(const CertificateFolder&) const = default;
};

enum class OwnCertificate { kRequired, kOptional };

// Reads the folder. With kOptional, tls.crt and tls.key may both be absent.
absl::StatusOr<CertificateFolder> ReadCertificateFolder(const std::string& folder, OwnCertificate own);

}  // namespace weft

#endif  // WEFT_BASE_CERTIFICATES_CERTIFICATE_FOLDER_H_
