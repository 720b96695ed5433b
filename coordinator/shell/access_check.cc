#include "coordinator/shell/access_check.h"

#include <grpc/grpc_security_constants.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/session/access.h"
#include "proto/wire/channel.h"

namespace weft {
namespace {

constexpr char kTokenMetadata[] = "authorization";
constexpr absl::string_view kTokenScheme = "Bearer ";

absl::string_view TextIn(const grpc::string_ref& text) { return {text.data(), text.size()}; }

}  // namespace

absl::StatusOr<Identity> AccessCheck::CallerOf(const grpc::AuthContext& context,
                                               const InputMetadata& metadata) const {
  if (tokens_ != nullptr && !context.IsPeerAuthenticated()) {
    const auto found = metadata.find(kTokenMetadata);
    absl::string_view token = found == metadata.end() ? "" : TextIn(found->second);
    if (!absl::ConsumePrefix(&token, kTokenScheme)) {
      return absl::UnauthenticatedError("the caller has neither a certificate nor a token");
    }
    std::optional<Identity> user = tokens_->Find(token);
    if (user.has_value()) return *std::move(user);
    return absl::UnauthenticatedError("the token is not known here; it may have been replaced");
  }
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  return IdentityOf(uris);
}

grpc::Status AccessCheck::Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                                  OutputMetadata*) {
  const auto path = metadata.find(":path");
  if (path == metadata.end()) return grpc::Status(grpc::StatusCode::INTERNAL, "the call has no path");
  const absl::StatusOr<Identity> caller = CallerOf(*context, metadata);
  if (!caller.ok()) return ToGrpc(caller.status());
  return ToGrpc(CheckAccess(*caller, TextIn(path->second)));
}

}  // namespace weft
