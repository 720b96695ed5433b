#include "base/certificates/certificate_authority.h"

#include <arpa/inet.h>
#include <openssl/asn1.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/certificates/openssl_objects.h"
#include "base/require.h"

namespace weft {
namespace {

constexpr int kSerialBits = 128;
constexpr size_t kMaxHostBytes = 253;  // of a name in DNS

std::string TextIn(BIO* out) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(out, &data);
  return std::string(data, static_cast<size_t>(size));
}

KeyedCertificate Pem(X509* certificate, EVP_PKEY* key) {
  const OpensslBio first(BIO_new(BIO_s_mem())), second(BIO_new(BIO_s_mem()));
  Require(PEM_write_bio_X509(first.get(), certificate) == 1, "a certificate has a PEM form");
  Require(PEM_write_bio_PrivateKey(second.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
          "a key has a PEM form");
  return {TextIn(first.get()), TextIn(second.get())};
}

void AddExtension(X509* certificate, X509* issuer, int extension, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const OpensslObject<X509_EXTENSION, X509_EXTENSION_free> made(
      X509V3_EXT_conf_nid(nullptr, &context, extension, value.c_str()));
  Require(made != nullptr, "an extension of a certificate has the form that OpenSSL reads");
  X509_add_ext(certificate, made.get(), -1);
}

// Returns a certificate without extensions and signature, for a new key.
OpensslCertificate NewCertificate(EVP_PKEY* key, const std::string& name, const Validity& validity) {
  OpensslCertificate certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  const OpensslObject<BIGNUM, BN_free> serial(BN_new());
  Require(BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1,
          "this machine has random numbers");
  BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get()));
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), validity.begin);
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), validity.end);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

// Returns the host as an alternative name; "" for what is no host.
std::string AlternativeName(const std::string& host) {
  unsigned char address[sizeof(in6_addr)];
  if (inet_pton(AF_INET, host.c_str(), address) == 1 || inet_pton(AF_INET6, host.c_str(), address) == 1) {
    return absl::StrCat("IP:", host);
  }
  if (host.empty() || host.size() > kMaxHostBytes) return "";
  for (const char c : host) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-' && c != '*') return "";
  }
  return absl::StrCat("DNS:", host);
}

// Returns the extended key usage of a certificate for these ends.
const char* UsageOf(CertificateEnds ends) {
  switch (ends) {
    case CertificateEnds::kServer:
      return "serverAuth";
    case CertificateEnds::kClient:
      return "clientAuth";
    case CertificateEnds::kBoth:
      break;
  }
  return "serverAuth,clientAuth";
}

// Returns the alternative names as OpenSSL reads them.
absl::StatusOr<std::string> AlternativesOf(const WantedCertificate& wanted) {
  if (wanted.ends == CertificateEnds::kClient && !wanted.hosts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate of ", wanted.name, " serves nobody, so it has no names of hosts"));
  }
  if (absl::Status hosts = CheckHosts(wanted.hosts); !hosts.ok()) return hosts;
  std::string alternatives = absl::StrCat("URI:", wanted.uri);
  for (const std::string& host : wanted.hosts) absl::StrAppend(&alternatives, ",", AlternativeName(host));
  return alternatives;
}

}  // namespace

absl::Status CheckHosts(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    if (!AlternativeName(host).empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("\"", host, "\" is neither the name of a host nor an IP address"));
  }
  return absl::OkStatus();
}

absl::StatusOr<KeyedCertificate> MakeAuthority(const std::string& name, const Validity& validity) {
  const OpensslKey key(EVP_EC_gen("P-256"));
  Require(key != nullptr, "OpenSSL makes keys");
  const OpensslCertificate made = NewCertificate(key.get(), name, validity);
  X509_set_issuer_name(made.get(), X509_get_subject_name(made.get()));
  AddExtension(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(made.get(), made.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(made.get(), made.get(), NID_subject_key_identifier, "hash");
  Require(X509_sign(made.get(), key.get(), EVP_sha256()) > 0, "OpenSSL signs");
  return Pem(made.get(), key.get());
}

absl::StatusOr<KeyedCertificate> IssueCertificate(const KeyedCertificate& authority,
                                                  const WantedCertificate& wanted) {
  const std::vector<OpensslCertificate> issuers = CertificatesOf(authority.certificate);
  const OpensslKey issuer_key = KeyOf(authority.key);
  if (issuers.empty() || issuer_key == nullptr ||
      X509_check_private_key(issuers.front().get(), issuer_key.get()) != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("the authority's certificate and key do not fit together: ", OpensslReason()));
  }
  const absl::StatusOr<std::string> alternatives = AlternativesOf(wanted);
  if (!alternatives.ok()) return alternatives.status();
  X509* const issuer = issuers.front().get();
  const OpensslKey key(EVP_EC_gen("P-256"));
  Require(key != nullptr, "OpenSSL makes keys");
  const OpensslCertificate made = NewCertificate(key.get(), wanted.name, wanted.validity);
  X509_set_issuer_name(made.get(), X509_get_subject_name(issuer));
  AddExtension(made.get(), issuer, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(made.get(), issuer, NID_key_usage, "critical,digitalSignature");
  AddExtension(made.get(), issuer, NID_ext_key_usage, UsageOf(wanted.ends));
  AddExtension(made.get(), issuer, NID_subject_alt_name, *alternatives);
  AddExtension(made.get(), issuer, NID_subject_key_identifier, "hash");
  // An authority that others have made may have no identifier of its key.
  if (X509_get_ext_by_NID(issuer, NID_subject_key_identifier, -1) >= 0) {
    AddExtension(made.get(), issuer, NID_authority_key_identifier, "keyid");
  }
  Require(X509_sign(made.get(), issuer_key.get(), EVP_sha256()) > 0, "OpenSSL signs");
  return Pem(made.get(), key.get());
}

}  // namespace weft
