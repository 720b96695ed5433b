#include "worker/shell/compute/device_version.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/shell/compute/device_version_value.h"

namespace weft {

const char* DeviceVersion() { return kDeviceVersionValue; }

absl::Status CheckDeviceVersion(const char* loader) {
  if (std::strcmp(loader, DeviceVersion()) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("it is of another build (", DeviceVersion(),
                                                    ") than weft-worker (", loader,
                                                    "); build or install both together"));
}

}  // namespace weft
