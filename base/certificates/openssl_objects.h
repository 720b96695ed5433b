// Owns objects of OpenSSL's libcrypto, and turns PEM text into them. For the sources of this folder alone.
//
// Failure: a null object; OpensslReason says why.
#ifndef WEFT_BASE_CERTIFICATES_OPENSSL_OBJECTS_H_
#define WEFT_BASE_CERTIFICATES_OPENSSL_OBJECTS_H_

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

template <auto free>
struct OpensslFree {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
template <typename T, auto free>
using OpensslObject = std::unique_ptr<T, OpensslFree<free>>;

using OpensslBio = OpensslObject<BIO, BIO_free_all>;
using OpensslCertificate = OpensslObject<X509, X509_free>;
using OpensslKey = OpensslObject<EVP_PKEY, EVP_PKEY_free>;

// Returns why OpenSSL's last call of this thread failed, and forgets it.
std::string OpensslReason();

// Returns all certificates of the text, in their order; empty if one of them cannot be read.
std::vector<OpensslCertificate> CertificatesOf(absl::string_view pem);
// Returns the private key of the text. A key with a pass phrase cannot be read.
OpensslKey KeyOf(absl::string_view pem);

// Returns the URIs among the certificate's alternative names.
std::vector<std::string> UrisOf(X509* certificate);
// Returns the end of its validity, in seconds since 1970.
int64_t ExpiryOf(const X509* certificate);

}  // namespace weft

#endif  // WEFT_BASE_CERTIFICATES_OPENSSL_OBJECTS_H_
