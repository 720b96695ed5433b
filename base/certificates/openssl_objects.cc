#include "base/certificates/openssl_objects.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>

namespace weft {
namespace {

OpensslBio BioOf(absl::string_view text) {
  return OpensslBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Answers OpenSSL's question for a pass phrase, which nobody is there to type.
int NoPassPhrase(char*, int, int, void*) { return 0; }

}  // namespace

std::string OpensslReason() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  std::string text = reason == nullptr ? "no reason given" : reason;
  ERR_clear_error();
  return text;
}

std::vector<OpensslCertificate> CertificatesOf(absl::string_view pem) {
  std::vector<OpensslCertificate> certificates;
  const OpensslBio in = BioOf(pem);
  ERR_clear_error();
  while (X509* one = PEM_read_bio_X509(in.get(), nullptr, NoPassPhrase, nullptr)) {
    certificates.emplace_back(one);
  }
  // At the end of the text OpenSSL misses the start of another certificate.
  const bool whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (!whole) certificates.clear();
  if (!certificates.empty()) ERR_clear_error();
  return certificates;
}

OpensslKey KeyOf(absl::string_view pem) {
  const OpensslBio in = BioOf(pem);
  return OpensslKey(PEM_read_bio_PrivateKey(in.get(), nullptr, NoPassPhrase, nullptr));
}

std::vector<std::string> UrisOf(X509* certificate) {
  std::vector<std::string> uris;
  const OpensslObject<GENERAL_NAMES, GENERAL_NAMES_free> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

int64_t ExpiryOf(const X509* certificate) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) return 0;
  return timegm(&end);
}

}  // namespace weft
