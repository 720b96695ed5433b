// Decides for every call that comes over TLS whether its caller may make it, before the call reaches a
// service. It knows no method by itself: proto/session/access.h has the table.
//
// Unauthenticated: the caller's certificate names no identity. PermissionDenied: its role may not call that
// method. Threads: gRPC's, several at once.
#ifndef WEFT_COORDINATOR_SHELL_ACCESS_CHECK_H_
#define WEFT_COORDINATOR_SHELL_ACCESS_CHECK_H_

#include <grpcpp/security/auth_metadata_processor.h>

namespace weft {

class AccessCheck final : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_ACCESS_CHECK_H_
