#include "worker/shell/torch/plugins.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/certificates/secret_text.h"
#include "base/durable_file.h"
#include "base/mutex.h"
#include "base/run_files.h"
#include "worker/shell/compute/plugin_permission.h"
#include "worker/shell/torch/host_offload.h"
#include "worker/shell/torch/python_interpreter.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using OperationNames = std::set<std::pair<std::string, std::string>>;

absl::Status About(const PluginSpec& plugin, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("plugins: ", plugin.library, " ", message));
}

absl::StatusOr<std::string> BytesOf(const PluginSpec& plugin) {
  std::ifstream in = RunFileToRead(plugin.library);
  if (!in) return About(plugin, "is not there, or is no file");
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.good() && !in.eof()) return About(plugin, "cannot be read");
  const std::string hash = Sha256Of(bytes);
  if (hash == plugin.sha256) return bytes;
  return About(plugin, absl::StrCat("has the SHA-256 ", hash, ", and the run names ", plugin.sha256));
}

// Loads a library from memory. The file in memory stays open: the dynamic linker knows a library by its path,
// and another one must never have the same.
absl::Status LoadBytes(const PluginSpec& plugin, absl::string_view bytes) {
  const int file = memfd_create("weft-plugin", MFD_CLOEXEC);
  if (file < 0 || !WriteAll(file, bytes.data(), bytes.size())) {
    const std::string why = std::strerror(errno);
    if (file >= 0) close(file);
    return absl::ResourceExhaustedError(absl::StrCat("plugins: ", plugin.library, ": no memory file: ", why));
  }
  try {
    if (dlopen(absl::StrCat("/proc/self/fd/", file).c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr)
      return absl::OkStatus();
    return About(plugin, absl::StrCat("cannot be loaded: ", dlerror()));
  } catch (const std::exception& error) {
    return About(plugin, absl::StrCat("cannot be loaded: ", error.what()));
  }
}

// Runs a plug-in that is Python.
absl::Status RunSource(const PluginSpec& plugin, const std::string& source) {
  const absl::Status ran = RunPythonSource(PythonOfPlugins(), plugin.library, source);
  InstallOffloadEngine();  // Python's PyTorch has installed its own
  return absl::Status(ran.code(), absl::StrCat("plugins: ", plugin.library, ": ", ran.message()));
}

OperationNames RegisteredOperations() {
  OperationNames names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    names.emplace(name.name, name.overload_name);
  return names;
}

// The libraries that this process has loaded, and their operations.
class LoadedPlugins {
 public:
  absl::Status Load(const PluginSpec& plugin) {
    MutexLock lock(mutex_);
    if (!MayLoadPlugin(plugin.sha256)) {
      return absl::PermissionDeniedError(absl::StrCat("plugins: this worker does not allow ", plugin.library,
                                                      "; start it with --plugins ", plugin.sha256));
    }
    const std::string name = fs::path(plugin.library).filename();
    const auto [loaded, is_new] = hashes_.emplace(name, plugin.sha256);
    if (!is_new && loaded->second == plugin.sha256) return absl::OkStatus();
    if (!is_new) {
      return absl::FailedPreconditionError(absl::StrCat("plugins: this process has loaded ", name,
                                                        " with the SHA-256 ", loaded->second,
                                                        ", and cannot load another one; start the "
                                                        "worker again"));
    }
    absl::Status status = LoadNew(plugin);
    if (!status.ok()) hashes_.erase(loaded);
    return status;
  }

  bool Registered(absl::string_view name, absl::string_view overload) {
    MutexLock lock(mutex_);
    return operations_.count({std::string(name), std::string(overload)}) != 0;
  }

 private:
  absl::Status LoadNew(const PluginSpec& plugin) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::StatusOr<std::string> bytes = BytesOf(plugin);
    if (!bytes.ok()) return bytes.status();
    const OperationNames before = RegisteredOperations();
    const bool is_python = fs::path(plugin.library).extension() == ".py";
    if (absl::Status s = is_python ? RunSource(plugin, *bytes) : LoadBytes(plugin, *bytes); !s.ok()) return s;
    const OperationNames after = RegisteredOperations();
    std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                        std::inserter(operations_, operations_.end()));
    return absl::OkStatus();
  }

  Mutex mutex_;
  std::map<std::string, std::string> hashes_ ABSL_GUARDED_BY(mutex_);  // by the file's name
  OperationNames operations_ ABSL_GUARDED_BY(mutex_);
};

LoadedPlugins& Loaded() {
  static auto* const loaded = new LoadedPlugins;
  return *loaded;
}

}  // namespace

absl::Status LoadPlugins(const std::vector<PluginSpec>& plugins) {
  for (const PluginSpec& plugin : plugins) {
    if (absl::Status s = Loaded().Load(plugin); !s.ok()) return s;
  }
  return absl::OkStatus();
}

bool IsOperationOfPlugin(absl::string_view name, absl::string_view overload) {
  return Loaded().Registered(name, overload);
}

}  // namespace weft
