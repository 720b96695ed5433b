// Decides which connections need TLS, in one way for all programs, and has the flags for it.
//
//   --tls DIR (WEFT_TLS)      certificates: ca.crt, tls.crt, tls.key
//   --insecure                allows connections with other machines without TLS
//   --token-file FILE         a user's token; else WEFT_TOKEN
//
// A unix socket is never encrypted: the permissions of its file say who may connect. On TCP there is TLS
// wherever --tls is given. Without it a connection that other machines could reach is refused, unless
// --insecure is given.
#ifndef WEFT_BASE_NET_SECURITY_FLAGS_H_
#define WEFT_BASE_NET_SECURITY_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/net/address.h"

namespace CLI {
class App;
}  // namespace CLI

namespace weft {

struct SecurityFlags {
  std::string tls;  // folder of certificates; "" for none
  bool insecure = false;
  std::string token;  // of a user without a certificate; shown over TLS alone
};

void AddSecurityFlags(CLI::App& app, SecurityFlags& flags);
// Adds the flag for a token, and takes $WEFT_TOKEN.
void AddTokenFlag(CLI::App& app, SecurityFlags& flags);

enum class Protection { kPlain, kTls };

// Returns how connections at the address are protected. FailedPrecondition, with what to do, if the address
// needs TLS and there is none; `act` is what is refused then, as "listen on".
absl::StatusOr<Protection> ProtectionAt(const Address& address, const SecurityFlags& flags,
                                        absl::string_view act);

}  // namespace weft

#endif  // WEFT_BASE_NET_SECURITY_FLAGS_H_
