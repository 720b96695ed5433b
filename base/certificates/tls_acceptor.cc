#include "base/certificates/tls_acceptor.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/certificates/openssl_objects.h"
#include "base/mutex.h"
#include "base/require.h"

namespace weft {
namespace {

using OpensslContext = OpensslObject<SSL_CTX, SSL_CTX_free>;

// Returns what new connections use. The folder was checked when it was read.
OpensslContext ContextOf(const CertificateFolder& folder) {
  OpensslContext context(SSL_CTX_new(TLS_server_method()));
  Require(context != nullptr, "OpenSSL makes a context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  for (const OpensslCertificate& authority : CertificatesOf(folder.authorities)) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get());
  }
  const std::vector<OpensslCertificate> chain = CertificatesOf(folder.identity);
  const OpensslKey key = KeyOf(folder.identity);
  Require(!chain.empty() && SSL_CTX_use_certificate(context.get(), chain.front().get()) == 1 &&
              SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1,
          "certificates that were checked can be used");
  for (size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(context.get(), chain[i].get());
  return context;
}

class OpensslConnection final : public TlsConnection {
 public:
  OpensslConnection(SSL_CTX* context, int fd) : ssl_(SSL_new(context)) {
    Require(ssl_ != nullptr, "OpenSSL makes a connection");
    SSL_set_fd(ssl_.get(), fd);
    SSL_set_accept_state(ssl_.get());
  }

  ssize_t Read(void* to, size_t size) override {
    ERR_clear_error();
    return Answer(SSL_read(ssl_.get(), to, static_cast<int>(size)));
  }
  ssize_t Write(const void* from, size_t size) override {
    ERR_clear_error();
    return Answer(SSL_write(ssl_.get(), from, static_cast<int>(size)));
  }
  bool wants_write() const override { return wants_write_; }

  std::vector<std::string> peer_uris() const override {
    X509* const peer = SSL_get0_peer_certificate(ssl_.get());
    return peer == nullptr ? std::vector<std::string>() : UrisOf(peer);
  }

 private:
  ssize_t Answer(int done) {
    if (done > 0) return done;
    const int reason = SSL_get_error(ssl_.get(), done);
    ERR_clear_error();
    if (reason == SSL_ERROR_ZERO_RETURN) return 0;
    const bool later = reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE;
    wants_write_ = reason == SSL_ERROR_WANT_WRITE;
    errno = later ? EAGAIN : EPROTO;
    return -1;
  }

  const OpensslObject<SSL, SSL_free> ssl_;
  bool wants_write_ = false;
};

class OpensslAcceptor final : public TlsAcceptor {
 public:
  absl::Status Watch(const std::string& folder, CertificateWatch::Observer observer) {
    const auto told = std::move(observer.changed);
    observer.changed = [this, told](const CertificateFolder& content) {
      Use(content);
      if (told) told(content);
    };
    auto watch = CertificateWatch::Start(folder, OwnCertificate::kRequired, std::move(observer));
    if (!watch.ok()) return watch.status();
    watch_ = *std::move(watch);
    MutexLock lock(mu_);
    if (context_ == nullptr) context_ = ContextOf(watch_->first());
    return absl::OkStatus();
  }

  std::unique_ptr<TlsConnection> Accept(int fd) override {
    MutexLock lock(mu_);
    return std::make_unique<OpensslConnection>(context_.get(), fd);  // it keeps the context
  }

 private:
  void Use(const CertificateFolder& content) {
    OpensslContext next = ContextOf(content);
    MutexLock lock(mu_);
    context_ = std::move(next);
  }

  Mutex mu_;
  OpensslContext context_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CertificateWatch> watch_;  // last: its thread uses the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<TlsAcceptor>> TlsAcceptor::Start(const std::string& folder,
                                                                CertificateWatch::Observer observer) {
  auto acceptor = std::make_unique<OpensslAcceptor>();
  if (absl::Status watched = acceptor->Watch(folder, std::move(observer)); !watched.ok()) return watched;
  return std::unique_ptr<TlsAcceptor>(std::move(acceptor));
}

}  // namespace weft
