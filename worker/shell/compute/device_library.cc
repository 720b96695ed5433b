#include "worker/shell/compute/device_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "worker/shell/compute/device_version.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDevices = 1024;  // most devices of one kind on a machine
constexpr size_t kLongestKind = 32;

bool IsKind(absl::string_view text) {
  if (text.empty() || text.size() > kLongestKind || !absl::ascii_islower(text[0])) return false;
  for (const char c : text) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '_') return false;
  }
  return true;
}

absl::StatusOr<std::string> FindLibrary(const std::string& kind, const DeviceSearch& search) {
  const std::string name = absl::StrCat("libweft_", kind, ".so");
  for (const std::string& folder : search.folders) {
    std::error_code none;
    fs::path path = fs::path(folder) / name;
    if (fs::exists(path, none)) return path.string();
  }
  const std::string where = absl::StrCat(name, " is not in ", absl::StrJoin(search.folders, ", "));
  if (kind != "cuda") {
    const bool meant = kind == "gpu" || kind == "nvidia" || kind == "cude" || kind == "coda";
    return absl::FailedPreconditionError(
        absl::StrCat(where, meant ? "; did you mean \"cuda\"? Devices" : "; devices",
                     " are cpu, cuda (an NVIDIA GPU), and any device whose library is in a folder of "
                     "WEFT_DEVICE_PATH"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      where,
      "; this Weft was built without it (with WEFT_CUDA=OFF, or where there was no CUDA compiler). Build it "
      "where nvcc is, or name the folder that has the library in WEFT_DEVICE_PATH"));
}

// Returns the library's path, if the machine could serve it.
absl::StatusOr<std::string> Find(const std::string& kind, int index, const DeviceSearch& search) {
  if (kind == "cuda") {
    const absl::Status driver = CheckCudaDriver(search, index);
    if (!driver.ok()) return driver;
  }
  return FindLibrary(kind, search);
}

// Returns advice about a library that the dynamic linker refused.
std::string Advice(const std::string& kind, absl::string_view error) {
  if (absl::StrContains(error, "undefined symbol")) {
    return "it was built against other versions of what it needs; build it with this Weft";
  }
  if (!absl::StrContains(error, "cannot open shared object file")) return "build or install it again";
  if (kind == "cuda") {
    return "LibTorch's CUDA half, or one of the libraries that it needs (cuDNN, cuBLAS, NCCL, ..), is "
           "missing. "
           "deploy/setup.sh fetches them into a source tree; elsewhere put their folders into "
           "LD_LIBRARY_PATH";
  }
  return "put the folder of what is missing into LD_LIBRARY_PATH";
}

absl::StatusOr<std::unique_ptr<DeviceBackend>> LoadBackend(const std::string& kind,
                                                           const DeviceOptions& options,
                                                           const DeviceSearch& search) {
  const absl::StatusOr<std::string> path = Find(kind, options.index, search);
  if (!path.ok()) return path.status();
  // The library is global: libraries that LibTorch loads later must find those that came with this one. It is
  // never closed, since it registers its parts with LibTorch.
  void* library = dlopen(path->c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const std::string error = dlerror();
    return absl::FailedPreconditionError(
        absl::StrCat("cannot load ", *path, " (", error, "); ", Advice(kind, error)));
  }
  const auto entry = reinterpret_cast<DeviceBackendEntry>(dlsym(library, kDeviceBackendEntry));
  if (entry == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(*path, " is not a device library of Weft: it has no ", kDeviceBackendEntry));
  }
  std::unique_ptr<DeviceBackend> backend;
  const absl::Status made = entry(DeviceVersion(), options, &backend);
  if (!made.ok()) {
    return absl::FailedPreconditionError(made.code() == absl::StatusCode::kUnavailable
                                             ? std::string(made.message())
                                             : absl::StrCat(*path, ": ", made.message()));
  }
  if (backend == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(*path, " reports success but gives no device"));
  }
  return backend;
}

// Names the flag in the status.
absl::Status OfChoice(const DeviceChoice& choice, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--device ", choice.kind,
                                                  choice.index < 0 ? "" : absl::StrCat(":", choice.index),
                                                  ": ", status.message()));
}

}  // namespace

absl::StatusOr<DeviceChoice> ParseDeviceChoice(absl::string_view text) {
  const size_t colon = text.find(':');
  DeviceChoice choice;
  choice.kind = std::string(text.substr(0, colon));
  bool good = IsKind(choice.kind);
  if (colon != absl::string_view::npos) {
    const absl::string_view digits = text.substr(colon + 1);
    good = good && choice.kind != "cpu" && choice.kind != "auto" && !digits.empty() &&
           absl::ascii_isdigit(digits[0]) && absl::SimpleAtoi(digits, &choice.index) &&
           choice.index < kMaxDevices;
  }
  if (good) return choice;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text.substr(0, 64), "\" is not a device; use cpu, auto, cuda or cuda:1"));
}

DeviceSearch DefaultDeviceSearch() {
  DeviceSearch search;
  if (const char* folders = std::getenv("WEFT_DEVICE_PATH"); folders != nullptr) {
    search.folders = absl::StrSplit(folders, ':', absl::SkipEmpty());
  }
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (!error) {
    search.folders.push_back(own.string());
    search.folders.push_back((own.parent_path() / "lib").string());
  }
  return search;
}

absl::Status CheckDevice(const DeviceChoice& choice, const DeviceSearch& search) {
  if (choice.kind == "cpu" || choice.kind == "auto") return absl::OkStatus();
  return OfChoice(choice, Find(choice.kind, choice.index, search).status());
}

absl::StatusOr<LoadedDevice> LoadDevice(const DeviceChoice& choice, DeviceOptions options,
                                        const DeviceSearch& search) {
  LoadedDevice loaded;
  if (choice.kind == "cpu") return loaded;
  options.index = choice.index;
  const bool any = choice.kind == "auto";
  auto backend = LoadBackend(any ? "cuda" : choice.kind, options, search);
  if (backend.ok()) {
    loaded.backend = *std::move(backend);
    loaded.announcement = absl::StrCat("device ", loaded.backend->name(), " (", loaded.backend->uuid(), ")");
    return loaded;
  }
  if (any) {
    loaded.announcement = absl::StrCat("device cpu, because ", backend.status().message());
    return loaded;
  }
  return OfChoice(choice, backend.status());
}

}  // namespace weft
