// Makes gRPC's credentials from a folder of certificates, and follows it while others replace its files: new
// connections use what is there, old ones go on.
//
// A coordinator is known by its identity (proto/session/access.h), not by its host: a client accepts a server
// whose certificate is of the folder's authorities and names the role coordinator. So several addresses,
// tunnels and machines that change their addresses need no special certificates, and no worker can pose as a
// coordinator.
// A server of others, as etcd, is known by the names of its hosts.
//
// Threads: any. Ownership: outlives the channels and servers that have its credentials. Failure of Start: as
// ReadCertificateFolder.
#ifndef WEFT_PROTO_WIRE_TLS_CREDENTIALS_H_
#define WEFT_PROTO_WIRE_TLS_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/certificates/certificate_watch.h"

namespace weft {

class TlsCredentials {
 public:
  static absl::StatusOr<std::shared_ptr<TlsCredentials>> Start(const std::string& folder, OwnCertificate own,
                                                               CertificateWatch::Observer observer);

  // Returns credentials for channels to a coordinator; with a token, each call shows it.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel(const std::string& token) const;
  // Returns credentials for channels to servers whose certificates name at least one of these hosts.
  std::shared_ptr<grpc::ChannelCredentials> ForHosts(std::vector<std::string> hosts) const;
  // Returns credentials for a server; `check` decides each call. With kOptional, a client without a
  // certificate reaches it too.
  std::shared_ptr<grpc::ServerCredentials> ForServer(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& check, OwnCertificate of_clients) const;

  // Returns the folder as it was at the start.
  const CertificateFolder& first() const { return watch_->first(); }

 private:
  std::shared_ptr<grpc::ChannelCredentials> Verifying(
      std::shared_ptr<grpc::experimental::CertificateVerifier> verifier) const;
  explicit TlsCredentials(std::unique_ptr<CertificateWatch> watch);

  const std::unique_ptr<CertificateWatch> watch_;
  const std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
};

}  // namespace weft

#endif  // WEFT_PROTO_WIRE_TLS_CREDENTIALS_H_
