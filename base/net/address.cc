#include "base/net/address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft {

bool Address::loopback() const {
  if (is_unix || host == "localhost" || host == "::1") return true;
  // Accept an IPv4 address, not a name that looks like the beginning of one.
  return absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == std::string::npos;
}

std::string Address::text() const {
  if (is_unix) return absl::StrCat("unix:", path);
  const bool v6 = absl::StrContains(host, ":");
  return absl::StrCat(v6 ? "[" : "", host, v6 ? "]" : "", ":", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", text, "': ", why,
                     "; write unix:PATH or HOST:PORT, as in unix:/tmp/weft.sock or 127.0.0.1:7070"));
  };
  Address a;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    // The kernel's limit is 108 bytes with the terminating zero.
    if (rest.empty() || rest.size() > 107) return wrong("a socket's path has 1 to 107 bytes");
    a.is_unix = true;
    a.path = std::string(rest);
    return a;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return wrong("no port");
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") != absl::ConsumeSuffix(&host, "]"))
    return wrong("brackets do not match");
  if (!absl::SimpleAtoi(rest.substr(colon + 1), &a.port) || a.port < 0 || a.port > 65535) {
    return wrong("the port is not a number from 0 to 65535");
  }
  a.host = std::string(host);
  return a;
}

absl::StatusOr<std::vector<Address>> ParseAddresses(absl::string_view text) {
  std::vector<Address> addresses;
  const std::vector<absl::string_view> parts =
      absl::StartsWith(text, "unix:") ? std::vector<absl::string_view>{text} : absl::StrSplit(text, ',');
  for (const absl::string_view part : parts) {
    absl::StatusOr<Address> address = ParseAddress(part);
    if (!address.ok()) return address.status();
    addresses.push_back(*std::move(address));
  }
  for (const Address& address : addresses) {
    const bool numeric =
        !address.is_unix && address.host.find_first_not_of("0123456789.") == std::string::npos;
    if (addresses.size() == 1 || numeric) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "address '", address.text(), "': of several addresses each is an IPv4 address in numbers, as in ",
        "10.0.0.1:7070,10.0.0.2:7070; or give one name that stands for all of them"));
  }
  return addresses;
}

std::string TextOf(const std::vector<Address>& addresses) {
  return absl::StrJoin(
      addresses, ",", [](std::string* out, const Address& address) { absl::StrAppend(out, address.text()); });
}

}  // namespace weft
