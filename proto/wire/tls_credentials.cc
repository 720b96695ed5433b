#include "proto/wire/tls_credentials.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/session/access.h"

namespace weft {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned int kRefreshSeconds = 1;

// Accepts a server that is a coordinator. The chain is checked before.
class CoordinatorVerifier final : public tls::ExternalCertificateVerifier {
 public:
  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) uris.emplace_back(uri.data(), uri.size());
    const absl::StatusOr<Identity> peer = IdentityOf(uris);
    if (!peer.ok()) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(peer.status().message()));
    } else if (peer->role != Role::kCoordinator) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                             absl::StrCat(peer->text(), " answers there, which is no coordinator"));
    }
    return true;  // decided at once
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}
};

// Accepts a server that is one of the hosts. gRPC's own verifier compares the name of the channel, which has
// several addresses.
class HostsVerifier final : public tls::ExternalCertificateVerifier {
 public:
  explicit HostsVerifier(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    for (const auto& names : {request->ip_names(), request->dns_names()}) {
      for (const grpc::string_ref& name : names) {
        if (absl::c_linear_search(hosts_, std::string(name.data(), name.size()))) return true;
      }
    }
    *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                           absl::StrCat("the server's certificate is not for ", absl::StrJoin(hosts_, ", ")));
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::vector<std::string> hosts_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<TlsCredentials>> TlsCredentials::Start(const std::string& folder,
                                                                      OwnCertificate own,
                                                                      CertificateWatch::Observer observer) {
  auto watch = CertificateWatch::Start(folder, own, std::move(observer));
  if (!watch.ok()) return watch.status();
  return std::shared_ptr<TlsCredentials>(new TlsCredentials(*std::move(watch)));
}

TlsCredentials::TlsCredentials(std::unique_ptr<CertificateWatch> watch)
    : watch_(std::move(watch)),
      provider_(watch_->first().identity.empty() ? std::make_shared<tls::FileWatcherCertificateProvider>(
                                                       watch_->authorities_path(), kRefreshSeconds)
                                                 : std::make_shared<tls::FileWatcherCertificateProvider>(
                                                       watch_->identity_path(), watch_->identity_path(),
                                                       watch_->authorities_path(), kRefreshSeconds)) {}

std::shared_ptr<grpc::ChannelCredentials> TlsCredentials::Verifying(
    std::shared_ptr<tls::CertificateVerifier> verifier) const {
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  if (!watch_->first().identity.empty()) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::move(verifier));
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> TlsCredentials::ForHosts(std::vector<std::string> hosts) const {
  return Verifying(tls::ExternalCertificateVerifier::Create<HostsVerifier>(std::move(hosts)));
}

std::shared_ptr<grpc::ChannelCredentials> TlsCredentials::ForChannel(const std::string& token) const {
  auto credentials = Verifying(tls::ExternalCertificateVerifier::Create<CoordinatorVerifier>());
  if (token.empty()) return credentials;
  return grpc::CompositeChannelCredentials(credentials, grpc::AccessTokenCredentials(token));
}

std::shared_ptr<grpc::ServerCredentials> TlsCredentials::ForServer(
    const std::shared_ptr<grpc::AuthMetadataProcessor>& check, OwnCertificate of_clients) const {
  tls::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(of_clients == OwnCertificate::kRequired
                                    ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  auto credentials = tls::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(check);
  return credentials;
}

}  // namespace weft
