// Decides for every call that comes over TLS whether its caller may make it, before the call reaches a
// service. It knows no method by itself: proto/session/access.h has the table.
//
// A caller has the identity of its certificate, or without one that of its token, as the call's metadata
// `authorization: Bearer TOKEN`. Unauthenticated: it has neither. PermissionDenied: its role may not call
// that method. Threads: gRPC's, several at once.
#ifndef WEFT_COORDINATOR_SHELL_ACCESS_CHECK_H_
#define WEFT_COORDINATOR_SHELL_ACCESS_CHECK_H_

#include <grpcpp/security/auth_metadata_processor.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "coordinator/shell/user_tokens.h"
#include "proto/session/access.h"

namespace weft {

class AccessCheck final : public grpc::AuthMetadataProcessor {
 public:
  // `tokens` is null where there are none.
  explicit AccessCheck(std::shared_ptr<UserTokens> tokens) : tokens_(std::move(tokens)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;

  // Returns who makes a call with that metadata. Unauthenticated for one without certificate and token, as
  // all are without TLS.
  absl::StatusOr<Identity> CallerOf(const grpc::AuthContext& context, const InputMetadata& metadata) const;

 private:
  const std::shared_ptr<UserTokens> tokens_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_ACCESS_CHECK_H_
