// Reads the file of --network (run/network_spec.h has its keys).
//
// Failure: InvalidArgument with file, line, place and what is allowed.
#ifndef WEFT_CLIENT_FILES_NETWORK_FILE_H_
#define WEFT_CLIENT_FILES_NETWORK_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "run/network_spec.h"

namespace weft {

absl::StatusOr<NetworkSpec> ReadNetworkFile(const std::string& path);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_NETWORK_FILE_H_
