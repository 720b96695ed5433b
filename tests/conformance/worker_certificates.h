// Makes certificates for workers of a test, and the network of TLS on loopback that uses them.
#ifndef WEFT_TESTS_CONFORMANCE_WORKER_CERTIFICATES_H_
#define WEFT_TESTS_CONFORMANCE_WORKER_CERTIFICATES_H_

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/certificates/certificate_authority.h"
#include "tests/test_folder.h"
#include "worker/shell/transport/tls_messenger.h"

namespace weft::testing {

// Keeps an authority and folders of certificates in a folder that goes with it.
class TestCertificates {
 public:
  TestCertificates() : authority_(*MakeAuthority("test authority", Now())) {}

  // Makes a folder for --tls with a certificate of that identity. Returns its path.
  std::string Add(const std::string& name, const std::string& uri) const {
    const std::string folder = folder_ / name;
    std::filesystem::create_directory(folder);
    const KeyedCertificate own = *IssueCertificate(authority_, {name, uri, {}, Now()});
    std::ofstream(folder + "/ca.crt") << authority_.certificate;
    std::ofstream(folder + "/tls.crt") << own.certificate;
    std::ofstream(folder + "/tls.key") << own.key;
    return folder;
  }

 private:
  static Validity Now() {
    return {absl::ToUnixSeconds(absl::Now() - absl::Hours(1)),
            absl::ToUnixSeconds(absl::Now() + absl::Hours(24))};
  }

  const KeyedCertificate authority_;
  const TestFolder folder_;
};

// Returns a network on loopback of a worker with these certificates, which trusts other workers.
inline TlsNetwork LoopbackNetworkWith(const std::string& certificates) {
  TlsNetwork network;
  network.certificates = certificates;
  network.interfaces = "lo";
  network.trusts = [](const std::vector<std::string>& uris) {
    return uris.size() == 1 && absl::StartsWith(uris[0], "weft://worker/");
  };
  return network;
}

// Returns a worker's certificates that all tests of this process share.
inline std::string SharedWorkerCertificates() {
  static const TestCertificates certificates;
  static const std::string folder = certificates.Add("worker", "weft://worker/a");
  return folder;
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_WORKER_CERTIFICATES_H_
