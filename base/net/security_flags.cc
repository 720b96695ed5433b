#include "base/net/security_flags.h"

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft {

void AddSecurityFlags(CLI::App& app, SecurityFlags& flags) {
  CLI::Option* tls =
      app.add_option("--tls", flags.tls,
                     "Folder with ca.crt, tls.crt and tls.key, for mutual TLS on every TCP connection with "
                     "the coordinator (default $WEFT_TLS; weft certs init makes such folders)")
          ->envname("WEFT_TLS")
          ->type_name("DIR");
  app.add_flag("--insecure", flags.insecure,
               "Allow addresses that other machines reach, without encryption or authentication")
      ->excludes(tls);
}

absl::StatusOr<Protection> ProtectionAt(const Address& address, const SecurityFlags& flags,
                                        absl::string_view act) {
  if (address.is_unix) return Protection::kPlain;
  if (!flags.tls.empty()) return Protection::kTls;
  if (address.loopback() || flags.insecure) return Protection::kPlain;
  return absl::FailedPreconditionError(absl::StrCat(
      "refusing to ", act, " ", address.text(),
      ": other machines reach that address, and without TLS the connection is neither encrypted nor "
      "authenticated. Pass --tls DIR with certificates, as weft certs init makes them, or use a unix socket "
      "or 127.0.0.1. On a network that you trust, --insecure does without"));
}

}  // namespace weft
