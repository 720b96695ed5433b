// Device libraries that cannot serve; which one, BAD_DEVICE says.
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/compute/device_version.h"

#define REFUSES 1
#define OTHER 2
#define EMPTY 3
#define NEEDY 4
#define UNRESOLVED 5

int DefinedNowhere();

extern "C" int weft_not_there();

namespace weft {
namespace {

absl::Status Answer([[maybe_unused]] const char* version) {
  switch (BAD_DEVICE) {
    case REFUSES:
      return absl::UnavailableError("its door is locked; unlock it");
    case OTHER:
      // It answers as a library of another build, to which the loader's version is foreign.
      return CheckDeviceVersion("0.0.1-of-long-ago");
    default:
      return absl::OkStatus();
  }
}

}  // namespace
}  // namespace weft

extern "C" __attribute__((visibility("default"))) absl::Status weft_device_backend(
    const char* version, const weft::DeviceOptions&, std::unique_ptr<weft::DeviceBackend>*) {
#if BAD_DEVICE == NEEDY
  weft_not_there();
#elif BAD_DEVICE == UNRESOLVED
  DefinedNowhere();
#endif
  return weft::Answer(version);
}
