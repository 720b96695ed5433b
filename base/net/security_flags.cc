#include "base/net/security_flags.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
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

void AddTokenFlag(CLI::App& app, SecurityFlags& flags) {
  const auto take = [&flags](const std::string& text, const std::string& from) {
    const std::string token(absl::StripAsciiWhitespace(text));
    const bool right = !token.empty() && std::all_of(token.begin(), token.end(),
                                                     [](unsigned char c) { return absl::ascii_isalnum(c); });
    // The message does not show the wrong text, which may be another secret.
    if (!right) throw CLI::ValidationError(from, "does not hold a token, as weft certs token prints it");
    flags.token = token;
  };
  app.add_option_function<std::string>(
         "--token-file",
         [take](const std::string& path) {
           std::ifstream file(path);
           std::string text;
           std::getline(file, text);
           take(text, absl::StrCat("--token-file ", path));
         },
         "File with your token, instead of a certificate; --tls DIR then needs ca.crt alone (default: the "
         "token is $WEFT_TOKEN)")
      ->type_name("FILE");
  app.callback([&flags, take] {
    const char* token = std::getenv("WEFT_TOKEN");
    if (flags.token.empty() && token != nullptr && *token != '\0') take(token, "WEFT_TOKEN");
  });
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
