#include "base/certificates/tls_endpoint.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/certificates/openssl_objects.h"
#include "base/mutex.h"
#include "base/require.h"

namespace weft {
namespace {

using OpensslContext = OpensslObject<SSL_CTX, SSL_CTX_free>;

// Returns what new connections use. The folder was checked when it was read.
OpensslContext ContextOf(const CertificateFolder& folder, const TlsOptions& options) {
  OpensslContext context(SSL_CTX_new(TLS_method()));
  Require(context != nullptr, "OpenSSL makes a context");
  SSL_CTX_set_min_proto_version(context.get(), options.newest_only ? TLS1_3_VERSION : TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (options.read_ahead > 0) {
    SSL_CTX_set_read_ahead(context.get(), 1);
    SSL_CTX_set_default_read_buffer_len(context.get(), options.read_ahead);
  }
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

enum class End { kServer, kClient };

// Returns a BIO that appends what is written to a std::string.
OpensslBio AppendTo(std::string* out) {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "weft output");
    BIO_meth_set_write(made, [](BIO* bio, const char* data, int size) {
      static_cast<std::string*>(BIO_get_data(bio))->append(data, static_cast<size_t>(size));
      return size;
    });
    BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH; });
    return made;
  }();
  OpensslBio bio(BIO_new(method));
  Require(bio != nullptr, "OpenSSL makes a BIO");
  BIO_set_data(bio.get(), out);
  BIO_set_init(bio.get(), 1);
  return bio;
}

class OpensslConnection final : public TlsConnection {
 public:
  OpensslConnection(SSL_CTX* context, int fd, End end, uint64_t key_bytes)
      : fd_(fd), ssl_(SSL_new(context)), key_bytes_(key_bytes) {
    Require(ssl_ != nullptr, "OpenSSL makes a connection");
    SSL_set0_rbio(ssl_.get(), BIO_new_socket(fd, BIO_NOCLOSE));
    SSL_set0_wbio(ssl_.get(), AppendTo(&out_).release());
    end == End::kServer ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
  }

  ssize_t Read(void* to, size_t size) override {
    ERR_clear_error();
    const ssize_t read = Answer(SSL_read(ssl_.get(), to, AtOnce(size)));
    return PutOut() ? read : -1;  // it may have answered
  }
  ssize_t Write(const void* from, size_t size) override {
    if (Flush() < 0) return -1;
    size_t written = 0;
    while (written < size && out_.size() < kOutBytes) {
      ERR_clear_error();
      const ssize_t n =
          Answer(SSL_write(ssl_.get(), static_cast<const char*>(from) + written, AtOnce(size - written)));
      if (n <= 0 && written == 0) return PutOut() ? n : -1;
      if (n <= 0) break;
      written += static_cast<size_t>(n);
      Count(static_cast<uint64_t>(n));
    }
    return PutOut() ? static_cast<ssize_t>(written) : -1;
  }
  int Handshake() override {
    ERR_clear_error();
    const ssize_t done = Answer(SSL_do_handshake(ssl_.get()));
    return PutOut() ? static_cast<int>(done) : -1;
  }
  int Flush() override {
    if (!PutOut()) return -1;
    if (out_.empty()) return 1;
    errno = EAGAIN;
    return -1;
  }
  bool wants_write() const override { return !out_.empty(); }
  std::string problem() const override { return problem_; }

  std::vector<std::string> peer_uris() const override {
    X509* const peer = SSL_get0_peer_certificate(ssl_.get());
    return peer == nullptr ? std::vector<std::string>() : UrisOf(peer);
  }

 private:
  // The bytes that are given to the socket at once: many records, because each call costs as much as one.
  static constexpr size_t kOutBytes = 128 << 10;

  static int AtOnce(size_t size) { return static_cast<int>(std::min<size_t>(size, INT_MAX)); }

  // Gives the socket what it takes. Returns false if it takes nothing more, ever.
  bool PutOut() {
    const int before = errno;
    while (out_at_ < out_.size()) {
      const ssize_t n = send(fd_, out_.data() + out_at_, out_.size() - out_at_, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n < 0) {
        problem_ = std::strerror(errno);
        errno = EPROTO;
        return false;
      }
      out_at_ += static_cast<size_t>(n);
    }
    if (out_at_ == out_.size()) {
      out_.clear();
      out_at_ = 0;
    }
    errno = before;
    return true;
  }

  // Has the next record say that those behind it have another key.
  void Count(uint64_t bytes) {
    of_key_ += bytes;
    if (of_key_ < key_bytes_ || SSL_version(ssl_.get()) < TLS1_3_VERSION) return;
    if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) of_key_ = 0;
  }

  ssize_t Answer(int done) {
    if (done > 0) return done;
    const int reason = SSL_get_error(ssl_.get(), done);
    const int system = errno;
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE) {
      errno = EAGAIN;
      return -1;
    }
    problem_ = Problem(reason, system);
    ERR_clear_error();
    if (reason == SSL_ERROR_ZERO_RETURN) return 0;
    errno = EPROTO;
    return -1;
  }

  std::string Problem(int reason, int system) const {
    const long verified = SSL_get_verify_result(ssl_.get());
    if (verified != X509_V_OK) return X509_verify_cert_error_string(verified);
    if (reason == SSL_ERROR_SYSCALL && system != 0) return std::strerror(system);
    return reason == SSL_ERROR_SSL ? OpensslReason() : "the other side has closed the connection";
  }

  const int fd_;
  std::string out_;  // encrypted bytes for the socket; before ssl_, which appends to it
  size_t out_at_ = 0;
  const OpensslObject<SSL, SSL_free> ssl_;
  const uint64_t key_bytes_;
  uint64_t of_key_ = 0;  // bytes that were written with the present key
  std::string problem_;
};

class OpensslEndpoint final : public TlsEndpoint {
 public:
  explicit OpensslEndpoint(const TlsOptions& options) : options_(options) {}

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
    if (context_ == nullptr) context_ = ContextOf(watch_->first(), options_);
    return absl::OkStatus();
  }

  std::unique_ptr<TlsConnection> Accept(int fd) override { return Begin(fd, End::kServer); }
  std::unique_ptr<TlsConnection> Connect(int fd) override { return Begin(fd, End::kClient); }

 private:
  std::unique_ptr<TlsConnection> Begin(int fd, End end) {
    MutexLock lock(mu_);
    return std::make_unique<OpensslConnection>(context_.get(), fd, end,
                                               options_.key_bytes);  // keeps the context
  }
  void Use(const CertificateFolder& content) {
    OpensslContext next = ContextOf(content, options_);
    MutexLock lock(mu_);
    context_ = std::move(next);
  }

  const TlsOptions options_;
  Mutex mu_;
  OpensslContext context_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CertificateWatch> watch_;  // last: its thread uses the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<TlsEndpoint>> TlsEndpoint::Start(const std::string& folder,
                                                                const TlsOptions& options,
                                                                CertificateWatch::Observer observer) {
  auto endpoint = std::make_unique<OpensslEndpoint>(options);
  if (absl::Status watched = endpoint->Watch(folder, std::move(observer)); !watched.ok()) return watched;
  return std::unique_ptr<TlsEndpoint>(std::move(endpoint));
}

}  // namespace weft
