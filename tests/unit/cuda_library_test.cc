// The real libweft_cuda.so on a machine without a driver: it loads, with all that LibTorch's CUDA half
// brings, and its entry says what is missing.
#include <dlfcn.h>

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/shell/compute/device_library.h"
#include "worker/shell/compute/device_version.h"
#include "worker/shell/memory/communicator.h"
#include "worker/shell/torch/rank_device.h"

namespace weft::cuda_library_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kLibrary = WEFT_CUDA_LIBRARY;

class CudaLibrary : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kLibrary.empty()) {
      GTEST_SKIP() << "SKIPPED: libweft_cuda.so is not built here (see configure's line about it)";
    }
    library_ = dlopen(kLibrary.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library_ != nullptr) return;
    const std::string error = dlerror();
    if (error.find("cannot open shared object file") == std::string::npos) FAIL() << error;
    GTEST_SKIP() << "SKIPPED: " << error << "; deploy/setup.sh fetches what LibTorch's CUDA half needs";
  }
  DeviceBackendEntry Entry() {
    return reinterpret_cast<DeviceBackendEntry>(dlsym(library_, kDeviceBackendEntry));
  }

  void* library_ = nullptr;
};

TEST_F(CudaLibrary, WithoutADriver_LoadsAndSaysSo) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) {
    GTEST_SKIP() << "SKIPPED: there is a driver here; the tests with label gpu use it";
  }
  // The machine is one where the loader finds a driver and CUDA does not.
  DeviceSearch search;
  search.folders = {kLibrary.substr(0, kLibrary.rfind('/'))};
  search.cuda_driver = WEFT_TEST_DEVICES "/libdriver_serves.so";
  const auto loaded = LoadDevice({"cuda"}, {}, search);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kFailedPrecondition) << loaded.status();
  EXPECT_THAT(std::string(loaded.status().message()),
              AllOf(HasSubstr("--device cuda: "), HasSubstr("driver")));
}

TEST_F(CudaLibrary, LoaderOfAnotherBuild_IsRefused) {
  ASSERT_NE(Entry(), nullptr);
  std::unique_ptr<DeviceBackend> backend;
  const absl::Status refused = Entry()("0.0.1-of-long-ago", DeviceOptions(), &backend);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("another build"), HasSubstr(DeviceVersion())));
  EXPECT_EQ(backend, nullptr);
}

}  // namespace
}  // namespace weft::cuda_library_test
