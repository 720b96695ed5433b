// Implements CheckCudaDriver (device_library.h) with the NVIDIA driver's own interface, by the few functions
// that say whether it can serve. They are looked up by name: there are no headers and nothing to link where
// there is no CUDA.
#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/threads.h"
#include "worker/shell/compute/device_library.h"

namespace weft {
namespace {

// The version of LibTorch's build: the runtime of CUDA 13 works with every driver from 580 on.
constexpr int kCudaMajor = 13;
constexpr char kDriverNeeded[] = "580";

// Result codes of cuda.h, whose numbers are stable.
enum CudaResult { kSuccess = 0, kStubLibrary = 34, kNoDevice = 100 };

struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*version)(int* version) = nullptr;  // 1000 * major + 10 * minor of the newest CUDA that it serves
  int (*count)(int* count) = nullptr;
  int (*error_text)(int error, const char** text) = nullptr;
};

// Returns the setting by which a person can change which devices there are.
std::string Visible() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : absl::StrCat(" (CUDA_VISIBLE_DEVICES is \"", visible, "\")");
}

absl::StatusOr<Driver> OpenDriver(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string error = dlerror();
    const bool absent = absl::StrContains(error, "cannot open shared object file: No such file") &&
                        absl::StartsWith(error, name);
    if (!absent) {
      return absl::FailedPreconditionError(absl::StrCat("the NVIDIA driver's library cannot be loaded (",
                                                        error, "); install the driver again"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no NVIDIA driver on this machine (no ", name, "); install driver ", kDriverNeeded,
        " or newer, or start the container with its GPUs (docker run --gpus all)"));
  }
  Driver driver;
  driver.init = reinterpret_cast<decltype(driver.init)>(dlsym(library, "cuInit"));
  driver.version = reinterpret_cast<decltype(driver.version)>(dlsym(library, "cuDriverGetVersion"));
  driver.count = reinterpret_cast<decltype(driver.count)>(dlsym(library, "cuDeviceGetCount"));
  driver.error_text = reinterpret_cast<decltype(driver.error_text)>(dlsym(library, "cuGetErrorString"));
  if (driver.init != nullptr && driver.version != nullptr && driver.count != nullptr) return driver;
  return absl::FailedPreconditionError(absl::StrCat(
      name, " is not an NVIDIA driver: it lacks cuInit, cuDriverGetVersion or cuDeviceGetCount"));
}

// Returns "550.54.14", or nothing.
std::string Release(const std::string& file) {
  std::string release;
  std::getline(std::ifstream(file), release);
  return release;
}

// Turns a driver's answer into a sentence.
absl::Status Check(const Driver& driver, int result) {
  switch (result) {
    case kSuccess:
      return absl::OkStatus();
    case kNoDevice:
      return absl::FailedPreconditionError(
          absl::StrCat("the NVIDIA driver finds no GPU that this process may use", Visible(),
                       "; nvidia-smi lists what it sees"));
    case kStubLibrary:
      return absl::FailedPreconditionError(
          "the libcuda.so.1 that is found first is the stub of a CUDA toolkit, not a driver; take its folder "
          "out "
          "of LD_LIBRARY_PATH and install the driver");
    default:
      break;
  }
  const char* text = nullptr;
  if (driver.error_text == nullptr || driver.error_text(result, &text) != kSuccess) text = nullptr;
  return absl::FailedPreconditionError(
      absl::StrCat("the NVIDIA driver does not start: ", text == nullptr ? "error" : text, " (", result,
                   "); nvidia-smi and the kernel's log (dmesg) say more"));
}

absl::Status CheckVersion(int version, const std::string& release) {
  if (version / 1000 >= kCudaMajor) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the NVIDIA driver", release.empty() ? "" : " ", release,
                                                    " serves CUDA ", version / 1000, ".", version % 1000 / 10,
                                                    " at most, and LibTorch here needs CUDA ", kCudaMajor,
                                                    ": update the driver to ", kDriverNeeded, " or newer"));
}

}  // namespace

absl::Status CheckCudaDriver(const DeviceSearch& search, int index) {
  const absl::StatusOr<Driver> driver = OpenDriver(search.cuda_driver);
  if (!driver.ok()) return driver.status();
  int version = 0, count = 0;
  const SignalsBlocked blocked;  // the driver starts a thread, which must not take the program's signals
  absl::Status status = Check(*driver, driver->version(&version));
  if (status.ok()) status = CheckVersion(version, Release(search.cuda_driver_release));
  if (status.ok()) status = Check(*driver, driver->init(0));
  if (status.ok()) status = Check(*driver, driver->count(&count));
  if (status.ok() && count <= 0) status = Check(*driver, kNoDevice);
  if (!status.ok() || index < count) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("there is no such GPU: this process may use ", count, ", cuda:0",
                   count > 1 ? absl::StrCat(" to cuda:", count - 1) : "", Visible()));
}

}  // namespace weft
