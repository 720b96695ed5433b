#include "client/training/run_data.h"

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/durable_file.h"
#include "base/fnv1a.h"
#include "base/yaml_file.h"
#include "client/console/console.h"
#include "client/training/worker_task.h"
#include "nlohmann/json.hpp"
#include "worker/shell/data/data_check.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kLong = std::chrono::milliseconds(300);  // a check that took so long is worth remembering
constexpr auto kShownAfter = std::chrono::seconds(1);

// Returns the folder for files that can be computed again; "" if the environment names none.
std::string CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return absl::StrCat(cache, "/weft");
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? absl::StrCat(home, "/.cache/weft") : "";
}

// Returns everything on which the result depends; "" if that cannot be found out.
std::string Identity(const RunSpec& run, DataUse use) {
  // The check of the files depends only on the sections of the data and the model, and of held-out data on
  // the samples that are asked for.
  const nlohmann::json json = ToJson(run);
  std::string identity =
      absl::StrCat("weft data check 1\n", json["model"].dump(), "\n", json["data"].dump(), "\n");
  if (use == DataUse::kValidation) absl::StrAppend(&identity, "samples ", run.validate.samples, "\n");
  for (const std::string& path : DataPaths(run)) {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
    absl::StrAppend(&identity, path, " ", info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
                    info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, " ", info.st_ctim.tv_sec, ".",
                    info.st_ctim.tv_nsec, "\n");
  }
  return identity;
}

// Returns the file that remembers a good result; it holds the identity, so that equal names do not matter.
std::string MemoryOf(const std::string& identity) {
  const std::string folder = CacheFolder();
  if (folder.empty() || identity.empty()) return "";
  return absl::StrFormat("%s/data-%016x", folder, Fnv1a().Add(identity).hash());
}

bool Remembered(const std::string& memory, const std::string& identity) {
  if (memory.empty()) return false;
  std::ifstream file(memory, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str() == identity;
}

void Remember(const std::string& memory, const std::string& identity) {
  if (memory.empty()) return;
  std::error_code ignored;
  fs::create_directories(fs::path(memory).parent_path(), ignored);
  WriteWholeFile(memory, identity).IgnoreError();
}

// Shows one line that renews itself, on a terminal and if it takes long.
class CheckProgress {
 public:
  void Show(int64_t done, int64_t all) {
    const auto now = Clock::now();
    if (!wanted_ || now - begun_ < kShownAfter || now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    absl::FPrintF(stderr, "\r\x1b[Kchecking the data: %d %%", all > 0 ? 100 * done / all : 100);
    std::fflush(stderr);
  }
  ~CheckProgress() {
    if (shown_ != Clock::time_point()) absl::FPrintF(stderr, "\r\x1b[K");
  }

 private:
  const bool wanted_ = ProgressWanted();
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point shown_;
};

absl::StatusOr<std::vector<std::string>> Check(const RunSpec& run, DataUse use) {
  CheckProgress progress;
  return CheckData(run, use, [&](int64_t done, int64_t all) { progress.Show(done, all); });
}

// Returns the key with which a message begins, as "data.text.path"; "" if it begins with none.
std::string KeyOf(absl::string_view message) {
  const absl::string_view key = message.substr(0, message.find(": "));
  for (const char c : key) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_') return "";
  }
  return std::string(key);
}

}  // namespace

namespace {

// Returns the message with the file before it, and the line of the key with which it begins.
std::string AtItsLine(const std::string& file, const std::string& message) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const auto yaml = ParseYaml(text.str());
  return absl::StrCat(file, ":", yaml.ok() ? absl::StrCat(yaml->LineOf(KeyOf(message)), ":") : "", " ",
                      message);
}

// `prefix`: of the keys under which the run file has the data.
absl::Status CheckOneOf(const std::string& file, const RunSpec& run, DataUse use, const std::string& prefix) {
  const std::string identity = Identity(run, use);
  const std::string memory = MemoryOf(identity);
  if (Remembered(memory, identity)) return absl::OkStatus();
  const auto begun = Clock::now();
  const auto checked = Check(run, use);
  const auto at = [&](absl::string_view what) { return AtItsLine(file, absl::StrCat(prefix, what)); };
  if (!checked.ok()) return absl::InvalidArgumentError(at(checked.status().message()));
  for (const std::string& warning : *checked) PrintMessage(absl::StrCat("warning: ", at(warning)));
  if (checked->empty() && Clock::now() - begun > kLong) Remember(memory, identity);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGraphs(const std::string& file, const RunSpec& run) {
  if (!std::holds_alternative<ExportedSpec>(run.model)) return absl::OkStatus();
  if (const absl::Status weights = CheckHasWeights(run); !weights.ok())
    return absl::InvalidArgumentError(AtItsLine(file, std::string(weights.message())));
  WorkerTask task;
  if (absl::Status started = task.Start("--check", run, {}); !started.ok()) return started;
  std::string problem;
  absl::Status ended = task.Watch(
      [&problem](const nlohmann::json& line) {
        problem = line.value("problem", std::string());
        return absl::OkStatus();
      },
      [] {});
  if (!ended.ok()) {
    task.PrintLastWords();
    return ended;
  }
  return problem.empty() ? absl::OkStatus() : absl::InvalidArgumentError(AtItsLine(file, problem));
}

absl::Status CheckTrainingData(const std::string& file, const RunSpec& run) {
  return CheckOneOf(file, run, DataUse::kTraining, "");
}

absl::Status CheckRunData(const std::string& file, const RunSpec& run) {
  if (absl::Status fits = CheckGraphs(file, run); !fits.ok()) return fits;
  const absl::Status trained = CheckTrainingData(file, run);
  return trained.ok() && run.validate.any() ? CheckHeldOutData(file, run) : trained;
}

absl::Status CheckHeldOutData(const std::string& file, const RunSpec& run) {
  return CheckOneOf(file, ValidationRun(run), DataUse::kValidation, "validate.");
}

absl::Status CheckFlaggedData(const std::string& flag, const RunSpec& run) {
  const auto checked = Check(run, DataUse::kTraining);
  if (checked.ok()) return absl::OkStatus();
  const std::string key = KeyOf(checked.status().message());
  absl::string_view rest = checked.status().message();
  if (!key.empty()) rest = rest.substr(key.size() + 2);
  absl::ConsumeSuffix(&rest, "; every worker must see it under this path");
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", rest));
}

}  // namespace weft
