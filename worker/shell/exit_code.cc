#include "worker/shell/exit_code.h"

#include <iostream>

namespace weft {

int Complain(const absl::Status& status, int code) {
  std::cerr << "weft-worker: " << status.message() << "\n";
  return code;
}

int CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return kUnreachable;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return kBadConfiguration;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kDenied;
    case absl::StatusCode::kResourceExhausted:
      return kTryAgain;
    default:
      return kFailed;
  }
}

}  // namespace weft
