#include "worker/shell/compute/device_library.h"

#include <dlfcn.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/shell/compute/device_version.h"

namespace weft::device_library_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kFolder = WEFT_TEST_DEVICES;

DeviceSearch TestSearch(const std::string& driver = "nowhere.so.1") {
  DeviceSearch search;
  search.folders = {"/nonexistent", kFolder};
  search.cuda_driver = driver == "nowhere.so.1" ? driver : kFolder + "/libdriver_" + driver + ".so";
  search.cuda_driver_release = "/nonexistent";
  return search;
}

std::string Refusal(const DeviceChoice& choice, const DeviceSearch& search = TestSearch()) {
  const auto loaded = LoadDevice(choice, {}, search);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kFailedPrecondition) << loaded.status();
  return std::string(loaded.status().message());
}

std::string DriverRefusal(const std::string& driver, int index = -1) {
  return Refusal({"cuda", index}, TestSearch(driver));
}

TEST(DeviceChoice, GoodTexts_AreTaken) {
  for (const char* text : {"cpu", "auto", "cuda", "testgpu"}) {
    const auto choice = ParseDeviceChoice(text);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->kind, text);
    EXPECT_EQ(choice->index, -1);
  }
  const auto second = ParseDeviceChoice("cuda:1");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->kind, "cuda");
  EXPECT_EQ(second->index, 1);
}

TEST(DeviceChoice, BadTexts_AreRefused) {
  for (const char* text : {"", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda:1:2", "cpu:0", "auto:1", "../x",
                           "cuda:99999999999", "cuda:1024", ":1", "cuda: 1", "cuda:+1"}) {
    const auto choice = ParseDeviceChoice(text);
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(choice.status().message()), HasSubstr("is not a device; use cpu, auto, cuda"))
        << text;
  }
}

TEST(DeviceLibrary, Cpu_TouchesNothing) {
  const auto loaded = LoadDevice({"cpu"}, {}, DeviceSearch());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->backend, nullptr);
  EXPECT_EQ(loaded->announcement, "");
}

TEST(DeviceLibrary, Good_IsLoadedWithItsOptions) {
  DeviceOptions options;
  options.process = 3;
  options.mark_jobs = true;
  const auto loaded = LoadDevice({"good", 7}, options, TestSearch());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_NE(loaded->backend, nullptr);
  EXPECT_EQ(loaded->backend->name(), "good:7");
  EXPECT_EQ(loaded->backend->uuid(), "process 3 graphs marks");
  EXPECT_EQ(loaded->announcement, "device good:7 (process 3 graphs marks)");
  void* segment = *loaded->backend->memory().Allocate(4096);
  loaded->backend->memory().Free(segment, 4096);
}

TEST(DeviceLibrary, Absent_SaysWhereItWasLookedFor) {
  EXPECT_EQ(Refusal({"tpu"}), "--device tpu: libweft_tpu.so is not in /nonexistent, " + kFolder +
                                  "; devices are cpu, cuda (an NVIDIA GPU), and any device whose library is "
                                  "in a folder of WEFT_DEVICE_PATH");
}

TEST(DeviceLibrary, Refusing_IsQuoted) {
  EXPECT_EQ(Refusal({"refuses", 2}), "--device refuses:2: its door is locked; unlock it");
}

TEST(DeviceLibrary, OfAnotherBuild_NamesBoth) {
  EXPECT_THAT(Refusal({"other"}), AllOf(HasSubstr("libweft_other.so: it is of another build"),
                                        HasSubstr("0.0.1-of-long-ago"), HasSubstr(DeviceVersion())));
}

TEST(DeviceLibrary, WithoutDevice_IsRefused) {
  EXPECT_THAT(Refusal({"empty"}), HasSubstr("reports success but gives no device"));
}

TEST(DeviceLibrary, WithoutEntry_IsRefused) {
  EXPECT_THAT(Refusal({"plain"}),
              HasSubstr("is not a device library of Weft: it has no weft_device_backend"));
}

TEST(DeviceLibrary, WhatItNeedsIsMissing_NamesThat) {
  EXPECT_THAT(Refusal({"needy"}), AllOf(HasSubstr("libweft_nowhere.so.1: cannot open shared object file"),
                                        HasSubstr("LD_LIBRARY_PATH")));
}

TEST(DeviceLibrary, Unresolved_IsRefusedWhenLoaded) {
  EXPECT_THAT(Refusal({"unresolved"}),
              AllOf(HasSubstr("undefined symbol"), HasSubstr("build it with this Weft")));
}

TEST(DeviceLibrary, NoFile_IsNoLibrary) {
  DeviceSearch search = TestSearch();
  search.folders = {::testing::TempDir()};
  std::ofstream(::testing::TempDir() + "/libweft_text.so") << "this is text";
  EXPECT_THAT(Refusal({"text"}, search), AllOf(HasSubstr("cannot load "), HasSubstr("libweft_text.so")));
}

TEST(CudaDriver, Absent_SaysWhatToInstall) {
  EXPECT_EQ(
      Refusal({"cuda"}),
      "--device cuda: there is no NVIDIA driver on this machine (no nowhere.so.1); install driver 580 or "
      "newer, or start the container with its GPUs (docker run --gpus all)");
}

TEST(CudaDriver, Old_SaysWhichIsThereAndNeeded) {
  DeviceSearch search = TestSearch("old");
  EXPECT_EQ(
      Refusal({"cuda"}, search),
      "--device cuda: the NVIDIA driver serves CUDA 12.8 at most, and LibTorch here needs CUDA 13: update "
      "the driver to 580 or newer");
  search.cuda_driver_release = ::testing::TempDir() + "/nvidia_version";
  std::ofstream(search.cuda_driver_release) << "570.86.10\n";
  EXPECT_THAT(Refusal({"cuda"}, search), HasSubstr("the NVIDIA driver 570.86.10 serves CUDA 12.8 at most"));
}

TEST(CudaDriver, WithoutGpu_SaysSo) {
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(
      DriverRefusal("bare"),
      "--device cuda: the NVIDIA driver finds no GPU that this process may use; nvidia-smi lists what it "
      "sees");
  setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  EXPECT_THAT(DriverRefusal("hidden"), HasSubstr("may use (CUDA_VISIBLE_DEVICES is \"-1\")"));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

// Otherwise that thread would take a SIGINT which another thread of the program waits for, and die of it.
TEST(CudaDriver, ThreadThatItStarts_HasEverySignalBlocked) {
  const DeviceSearch search = TestSearch("serves");
  ASSERT_TRUE(CheckCudaDriver(search, 0).ok());
  void* const driver = dlopen(search.cuda_driver.c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(driver, nullptr);
  const auto blocks = reinterpret_cast<int (*)(int)>(dlsym(driver, "DriverThreadBlocks"));
  ASSERT_NE(blocks, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) EXPECT_EQ(blocks(signal), 1) << signal;
  sigset_t own;
  pthread_sigmask(SIG_BLOCK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGINT), 0);
}

TEST(CudaDriver, Stub_IsToldFromADriver) { EXPECT_THAT(DriverRefusal("stub"), HasSubstr("is the stub of")); }

TEST(CudaDriver, ThatDoesNotStart_IsQuoted) {
  EXPECT_THAT(DriverRefusal("starting"), HasSubstr("does not start: system not yet initialized (802)"));
}

TEST(CudaDriver, NoSuchIndex_SaysWhichThereAre) {
  EXPECT_EQ(DriverRefusal("serves", 2),
            "--device cuda:2: there is no such GPU: this process may use 2, cuda:0 to cuda:1");
}

TEST(DeviceLibrary, NamedAsOtherToolsDo_SaysWhatWasMeant) {
  EXPECT_THAT(Refusal({"gpu"}), HasSubstr("; did you mean \"cuda\"? Devices are cpu, cuda (an NVIDIA GPU),"));
}

TEST(CudaDriver, NoDriverLibrary_IsToldFromABrokenOne) {
  DeviceSearch search = TestSearch();
  search.cuda_driver = kFolder + "/libweft_plain.so";
  EXPECT_THAT(Refusal({"cuda"}, search), HasSubstr("is not an NVIDIA driver: it lacks cuInit"));
  search.cuda_driver = kFolder + "/libweft_needy.so";
  EXPECT_THAT(Refusal({"cuda"}, search),
              AllOf(HasSubstr("driver's library cannot be loaded"), HasSubstr("libweft_nowhere.so.1")));
}

TEST(CudaLibrary, NotBuilt_SaysWhy) {
  EXPECT_THAT(DriverRefusal("serves"), AllOf(StartsWith("--device cuda: libweft_cuda.so is not in"),
                                             HasSubstr("WEFT_CUDA=OFF"), HasSubstr("WEFT_DEVICE_PATH")));
}

TEST(DeviceCheck, WithoutLoading_FindsWhatIsMissing) {
  EXPECT_TRUE(CheckDevice({"cpu"}, DeviceSearch()).ok());
  EXPECT_TRUE(CheckDevice({"auto"}, DeviceSearch()).ok());
  EXPECT_TRUE(CheckDevice({"refuses"}, TestSearch()).ok());  // only loading it says that
  EXPECT_THAT(std::string(CheckDevice({"tpu"}, TestSearch()).message()),
              HasSubstr("libweft_tpu.so is not in"));
  EXPECT_THAT(std::string(CheckDevice({"cuda", 5}, TestSearch("serves")).message()),
              StartsWith("--device cuda:5: there is no such GPU"));
}

TEST(DeviceAuto, WhatIsMissing_IsToldAndTheCpuTaken) {
  const auto loaded = LoadDevice({"auto"}, {}, TestSearch());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->backend, nullptr);
  EXPECT_THAT(loaded->announcement,
              StartsWith("device cpu, because there is no NVIDIA driver on this machine"));
}

TEST(DeviceSearch, FromEnvironment_ComesFirst) {
  setenv("WEFT_DEVICE_PATH", "/first::/second", 1);
  const DeviceSearch search = DefaultDeviceSearch();
  unsetenv("WEFT_DEVICE_PATH");
  ASSERT_EQ(search.folders.size(), 4u);
  EXPECT_EQ(search.folders[0], "/first");
  EXPECT_EQ(search.folders[1], "/second");
  EXPECT_EQ(search.folders[3], search.folders[2].substr(0, search.folders[2].rfind('/')) + "/lib");
}

}  // namespace
}  // namespace weft::device_library_test
