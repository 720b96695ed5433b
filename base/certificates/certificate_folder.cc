#include "base/certificates/certificate_folder.h"

#include <openssl/x509_vfy.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/certificates/openssl_objects.h"

namespace weft {
namespace {

constexpr std::streamsize kMaxPemBytes = 1 << 18;

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxPemBytes, '\0');
  in.read(text.data(), kMaxPemBytes);
  if (!in.is_open() || in.bad() || in.gcount() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     " cannot be read; the folder needs ca.crt, tls.crt and tls.key, as weft certs init "
                     "makes them"));
  }
  if (in.gcount() == kMaxPemBytes) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is too large for certificates"));
  }
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

absl::StatusOr<std::vector<OpensslCertificate>> ParseCertificates(const std::string& path,
                                                                  const std::string& pem) {
  std::vector<OpensslCertificate> certificates = CertificatesOf(pem);
  if (!certificates.empty()) return certificates;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " has no certificates in PEM form: ", OpensslReason()));
}

// Checks that the first certificate is valid now and comes from an authority, through the others.
absl::Status CheckIssued(const std::string& path, const std::vector<OpensslCertificate>& chain,
                         const std::vector<OpensslCertificate>& authorities) {
  const OpensslObject<X509_STORE, X509_STORE_free> store(X509_STORE_new());
  for (const OpensslCertificate& one : authorities) X509_STORE_add_cert(store.get(), one.get());
  struct CertificateStack {
    STACK_OF(X509) * stack = sk_X509_new_null();
    ~CertificateStack() { sk_X509_free(stack); }  // the certificates are the chain's
  } between;
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between.stack, chain[i].get());
  const OpensslObject<X509_STORE_CTX, X509_STORE_CTX_free> check(X509_STORE_CTX_new());
  X509_STORE_CTX_init(check.get(), store.get(), chain.front().get(), between.stack);
  if (X509_verify_cert(check.get()) == 1) return absl::OkStatus();
  const int error = X509_STORE_CTX_get_error(check.get());
  OpensslReason();
  if (error == X509_V_ERR_CERT_HAS_EXPIRED) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has expired, on ",
                     absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixSeconds(ExpiryOf(chain.front().get())),
                                      absl::UTCTimeZone()),
                     " UTC, or an authority of it has; make the certificates anew, as with weft certs init"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is not accepted by the authorities of ca.crt beside it: ", X509_verify_cert_error_string(error),
      "; take both from the same authority"));
}

}  // namespace

absl::StatusOr<CertificateFolder> ReadCertificateFolder(const std::string& folder, OwnCertificate own) {
  const std::string authority_path = absl::StrCat(folder, "/ca.crt");
  const std::string chain_path = absl::StrCat(folder, "/tls.crt");
  const std::string key_path = absl::StrCat(folder, "/tls.key");
  CertificateFolder read;
  absl::StatusOr<std::string> authority_text = ReadPem(authority_path);
  if (!authority_text.ok()) return authority_text.status();
  const auto authorities = ParseCertificates(authority_path, *authority_text);
  if (!authorities.ok()) return authorities.status();
  read.authorities = *std::move(authority_text);
  if (own == OwnCertificate::kOptional && !std::filesystem::exists(chain_path) &&
      !std::filesystem::exists(key_path)) {
    return read;
  }

  absl::StatusOr<std::string> chain_text = ReadPem(chain_path), key_text = ReadPem(key_path);
  if (!chain_text.ok()) return chain_text.status();
  if (!key_text.ok()) return key_text.status();
  const auto chain = ParseCertificates(chain_path, *chain_text);
  if (!chain.ok()) return chain.status();
  const OpensslKey key = KeyOf(*key_text);
  if (key == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(key_path, " has no private key in PEM form without a pass phrase: ", OpensslReason()));
  }
  if (X509_check_private_key(chain->front().get(), key.get()) != 1) {
    OpensslReason();
    return absl::FailedPreconditionError(
        absl::StrCat(key_path,
                     " is not the key of tls.crt beside it; replace both files together, as by one rename of "
                     "their folder"));
  }
  if (absl::Status issued = CheckIssued(chain_path, *chain, *authorities); !issued.ok()) return issued;
  read.identity = absl::StrCat(*chain_text, "\n", *key_text);
  read.uris = UrisOf(chain->front().get());
  read.expires = ExpiryOf(chain->front().get());
  return read;
}

}  // namespace weft
