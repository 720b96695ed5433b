// Makes an authority and certificates of it, for one installation of Weft: P-256 keys, SHA-256.
//
// An authority is a certificate and its key as PEM texts. The key alone suffices to make certificates; no
// other part of Weft needs it. Threads: any. Failure: FailedPrecondition for an authority that cannot be
// read, InvalidArgument for a name that is no host's, or for hosts of a certificate that serves nobody.
#ifndef WEFT_BASE_CERTIFICATES_CERTIFICATE_AUTHORITY_H_
#define WEFT_BASE_CERTIFICATES_CERTIFICATE_AUTHORITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft {

struct KeyedCertificate {
  std::string certificate, key;  // PEM
};

// The time in which a certificate is valid, in seconds since 1970.
struct Validity {
  int64_t begin = 0, end = 0;
};

// Makes an authority that signs itself.
absl::StatusOr<KeyedCertificate> MakeAuthority(const std::string& name, const Validity& validity);

// The ends of a connection that a certificate is good for (extended key usage). OpenSSL and gRPC refuse it at
// any other end.
enum class CertificateEnds { kServer, kClient, kBoth };

struct WantedCertificate {
  std::string name;                // common name, for people
  std::string uri;                 // identity, as weft://worker/a
  std::vector<std::string> hosts;  // names and addresses by which others reach it; none for kClient
  Validity validity;
  CertificateEnds ends = CertificateEnds::kBoth;
};

// Returns InvalidArgument that names the first of the hosts that is neither a name nor an address.
absl::Status CheckHosts(const std::vector<std::string>& hosts);

// Makes a key, and a certificate of the authority for it.
absl::StatusOr<KeyedCertificate> IssueCertificate(const KeyedCertificate& authority,
                                                  const WantedCertificate& wanted);

}  // namespace weft

#endif  // WEFT_BASE_CERTIFICATES_CERTIFICATE_AUTHORITY_H_
