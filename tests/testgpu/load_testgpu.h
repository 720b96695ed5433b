// Loads the test device's library into a test program, as weft-worker does.
#ifndef WEFT_TESTS_TESTGPU_LOAD_TESTGPU_H_
#define WEFT_TESTS_TESTGPU_LOAD_TESTGPU_H_

#include <filesystem>
#include <memory>
#include <utility>

#include "worker/shell/compute/device_backend.h"
#include "worker/shell/compute/device_library.h"

namespace weft::testing {

inline DeviceSearch FoldersOfThisProgram() {
  DeviceSearch search;
  search.folders = {std::filesystem::read_symlink("/proc/self/exe").parent_path().string()};
  return search;
}

// Loads it before anything uses LibTorch. Later calls return another backend over the same memory, with the
// environment's settings then. Ends the program where the library cannot be loaded: it is built beside it.
inline std::unique_ptr<DeviceBackend> LoadTestGpu(int index = 0) {
  absl::StatusOr<LoadedDevice> loaded = LoadDevice({"testgpu", index}, {}, FoldersOfThisProgram());
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", std::string(loaded.status().message()).c_str());
    std::abort();
  }
  return std::move(loaded->backend);
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_TESTGPU_LOAD_TESTGPU_H_
