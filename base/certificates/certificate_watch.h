// Follows a folder of certificates (certificate_folder.h) while others replace its files, and offers its
// content as two files that always fit together.
//
// Libraries that read certificates by themselves, as gRPC does, read key and certificate one after the other.
// A replacement that is half done, or one with an error, then breaks every new connection. So they read
// copies in memory: a copy is taken when the folder has changed and is right, and takes the place of the last
// one at one instant. A folder that is wrong changes nothing.
//
// Threads: one of its own, which looks once a second and calls the observer. Everything else may be called
// from any thread. Ownership: destruction ends the thread and removes the copies. Failure of Start: as
// ReadCertificateFolder, and ResourceExhausted without a descriptor for the copies.
#ifndef WEFT_BASE_CERTIFICATES_CERTIFICATE_WATCH_H_
#define WEFT_BASE_CERTIFICATES_CERTIFICATE_WATCH_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/certificates/certificate_folder.h"
#include "base/mutex.h"

namespace weft {

class CertificateWatch {
 public:
  struct Observer {
    std::function<void(const CertificateFolder&)> changed;  // hears of each new content
    std::function<void(const absl::Status&)> refused;       // hears once why a new content is not taken
  };

  static absl::StatusOr<std::unique_ptr<CertificateWatch>> Start(const std::string& folder,
                                                                 OwnCertificate own, Observer observer);
  ~CertificateWatch();

  // Returns the path at which this process reads the authorities.
  std::string authorities_path() const;
  // Returns the path of the own certificate and its key, in one file.
  std::string identity_path() const;
  // Returns the folder as it was at the start.
  const CertificateFolder& first() const { return first_; }

 private:
  CertificateWatch(const std::string& folder, OwnCertificate own, Observer observer,
                   CertificateFolder content);
  void Run();
  // Puts the content into the files in memory. ResourceExhausted where that cannot be done now.
  absl::Status Replace(const CertificateFolder& content) const;

  const std::string folder_;
  const OwnCertificate own_;
  const Observer observer_;
  const CertificateFolder first_;
  const int authorities_, identity_;  // files in memory, exchanged as a whole
  Notification over_;
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_BASE_CERTIFICATES_CERTIFICATE_WATCH_H_
