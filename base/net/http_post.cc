#include "base/net/http_post.h"

#include <httplib.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weft {
namespace {

// Returns "https://host:port" and "/path"; two empty texts if the address is none.
std::pair<std::string, std::string> Split(absl::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme == absl::string_view::npos) return {};
  const size_t path = url.find('/', scheme + 3);
  if (path == absl::string_view::npos) return {std::string(url), "/"};
  return {std::string(url.substr(0, path)), std::string(url.substr(path))};
}

}  // namespace

absl::Status Post(const HttpPost& post) {
  const auto [server, path] = Split(post.url);
  httplib::Client client(server);
  if (server.empty() || !client.is_valid())
    return absl::InvalidArgumentError(absl::StrCat("\"", post.url, "\" is no address of HTTP"));
  client.set_connection_timeout(post.timeout_seconds);
  client.set_read_timeout(post.timeout_seconds);
  client.set_write_timeout(post.timeout_seconds);
  if (!post.authority.empty()) client.set_ca_cert_path(post.authority);
  if (!post.token.empty()) client.set_bearer_token_auth(post.token);
  const httplib::Result answer = client.Post(path, post.body, post.type);
  if (answer && answer->status >= 200 && answer->status < 300) return absl::OkStatus();
  if (answer) return absl::InternalError(absl::StrCat(post.url, " answers with ", answer->status));
  const std::string what = absl::StrCat(post.url, ": ", httplib::to_string(answer.error()));
  const bool refused = answer.error() == httplib::Error::SSLServerVerification ||
                       answer.error() == httplib::Error::SSLLoadingCerts;
  return refused ? absl::UnauthenticatedError(what) : absl::UnavailableError(what);
}

}  // namespace weft
