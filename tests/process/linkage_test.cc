// Tests what the programs, the client library and the device libraries need and offer to the dynamic linker:
// no program needs CUDA, and a device library offers its entry alone.
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"

namespace weft::linkage_test {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string Built(const std::string& path) { return std::string(getenv("WEFT_BIN")) + "/" + path; }

// The names of the libraries that a file needs by itself.
std::set<std::string> Needed(const std::string& file) {
  const CommandResult result = Command::Run({"/usr/bin/readelf", "-d", "-W", file});
  EXPECT_EQ(result.code, 0) << result.err;
  std::set<std::string> needed;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const size_t name = line.find("Shared library: [");
    if (line.find("(NEEDED)") == std::string::npos || name == std::string::npos) continue;
    const size_t begin = line.find('[', name) + 1;
    needed.insert(line.substr(begin, line.find(']', begin) - begin));
  }
  return needed;
}

// Returns the libraries of the GPU's world, and `libtorch`, which would bring them.
std::set<std::string> OfCuda(const std::set<std::string>& needed) {
  std::set<std::string> found;
  for (const std::string& name : needed) {
    for (const char* begin :
         {"libcu", "libnv", "libnccl", "libtorch_cuda", "libc10_cuda", "libtorch.so", "libtorch_nvshmem"}) {
      if (name.rfind(begin, 0) == 0) found.insert(name);
    }
  }
  return found;
}

std::set<std::string> Exported(const std::string& file) {
  const CommandResult result = Command::Run({"/usr/bin/nm", "-D", "--defined-only", file});
  EXPECT_EQ(result.code, 0) << result.err;
  std::set<std::string> names;
  std::istringstream lines(result.out);
  for (std::string address, type, name; lines >> address >> type >> name;) names.insert(name);
  return names;
}

TEST(Linkage, Worker_NeedsTheCpuHalfOfLibTorchAlone) {
  const std::set<std::string> needed = Needed(Built("weft-worker"));
  EXPECT_THAT(OfCuda(needed), IsEmpty());
  EXPECT_THAT(needed, Contains("libtorch_cpu.so"));
}

TEST(Linkage, ClientAndCoordinator_NeedNeitherCudaNorLibTorch) {
  for (const char* program : {"weft", "weft-coordinator"}) {
    const std::set<std::string> needed = Needed(Built(program));
    EXPECT_THAT(OfCuda(needed), IsEmpty()) << program;
    EXPECT_THAT(needed, Not(Contains(StartsWith("libtorch")))) << program;
    EXPECT_THAT(needed, Contains("libc.so.6")) << program;
  }
}

TEST(Linkage, ClientLibrary_OffersItsClassAloneAndNeedsNoOtherRoom) {
  const std::string library = Built("../lib/libweft_client.so");
  EXPECT_THAT(Exported(library), Each(AnyOf(StartsWith("_ZN4weft6Client"), StartsWith("_ZNK4weft6Client"))));
  const std::set<std::string> needed = Needed(library);
  EXPECT_THAT(OfCuda(needed), IsEmpty());
  for (const char* begin : {"libtorch", "libuc", "libsqlite", "libprometheus", "libweft"})
    EXPECT_THAT(needed, Not(Contains(StartsWith(begin)))) << begin;
  EXPECT_THAT(needed, Contains(StartsWith("libgrpc++")));
}

TEST(Linkage, DeviceLibrary_OffersItsEntryAlone) {
  EXPECT_THAT(Exported(WEFT_GOOD_DEVICE), ElementsAre("weft_device_backend"));
}

TEST(Linkage, CudaLibrary_OffersItsEntryAndNeedsLibTorchsCudaHalf) {
  const std::string library = WEFT_CUDA_LIBRARY;
  if (library.empty()) GTEST_SKIP() << "libweft_cuda.so is not built here (see configure's line about it)";
  EXPECT_THAT(Exported(library), ElementsAre("weft_device_backend"));
  const std::set<std::string> needed = Needed(library);
  EXPECT_THAT(needed, Contains("libtorch_cuda.so"));
  EXPECT_THAT(needed, Contains("libc10_cuda.so"));
  // These are LibTorch's own needs, or asked for when they are there.
  EXPECT_THAT(needed, Not(Contains("libcuda.so.1")));
}

}  // namespace
}  // namespace weft::linkage_test
