#include "coordinator/shell/access_check.h"

#include <grpc/grpc_security_constants.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/session/access.h"
#include "proto/wire/channel.h"

namespace weft {
namespace {

absl::StatusOr<Identity> CallerOf(const grpc::AuthContext& context) {
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  return IdentityOf(uris);
}

}  // namespace

grpc::Status AccessCheck::Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                                  OutputMetadata*) {
  const auto path = metadata.find(":path");
  if (path == metadata.end()) return grpc::Status(grpc::StatusCode::INTERNAL, "the call has no path");
  const absl::StatusOr<Identity> caller = CallerOf(*context);
  if (!caller.ok()) return ToGrpc(caller.status());
  return ToGrpc(CheckAccess(*caller, absl::string_view(path->second.data(), path->second.size())));
}

}  // namespace weft
