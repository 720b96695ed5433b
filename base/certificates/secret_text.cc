#include "base/certificates/secret_text.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include "absl/strings/escaping.h"
#include "base/require.h"

namespace weft {

std::string RandomSecret() {
  std::string bytes(32, '\0');
  const int made = RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  Require(made == 1, "this machine has random numbers");
  return absl::BytesToHexString(bytes);
}

std::string Sha256Of(absl::string_view text) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  const int made = EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()),
                              &size, EVP_sha256(), nullptr);
  Require(made == 1, "OpenSSL has SHA-256");
  return absl::BytesToHexString(absl::string_view(digest).substr(0, size));
}

bool EqualSecrets(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace weft
