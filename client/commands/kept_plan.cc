#include "client/commands/kept_plan.h"

#include <filesystem>
#include <system_error>

#include "base/durable_file.h"
#include "base/yaml_file.h"
#include "client/files/profile.h"
#include "client/files/text_file.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxPlanBytes = 1 << 20;
constexpr char kPlan[] = "plan.yaml";

// Returns the profile that the plan names, where it is still there and the same; else "".
std::string ProfileOfPlan(const std::string& path, const std::string& text) {
  const auto yaml = ParseYaml(text);
  const nlohmann::json none;
  const nlohmann::json& said =
      yaml.ok() && yaml->json.is_object() && yaml->json.contains("plan") ? yaml->json["plan"] : none;
  if (!said.is_object() || !said.contains("profile") || !said["profile"].is_string()) return "";
  const fs::path profile = said["profile"].get<std::string>();
  for (const fs::path& place : {profile, fs::path(path).parent_path() / profile.filename()}) {
    const auto bytes = ReadTextFile(place.string(), kMaxProfileBytes, "a profile");
    if (bytes.ok() && said.contains("profile_hash") && said["profile_hash"] == ProfileHash(*bytes))
      return *bytes;
  }
  return "";
}

}  // namespace

absl::StatusOr<KeptPlan> ReadKeptPlan(const std::string& path) {
  auto text = ReadTextFile(path, kMaxPlanBytes, "a plan");
  if (!text.ok()) return text.status();
  std::string profile = ProfileOfPlan(path, *text);
  return KeptPlan{*std::move(text), std::move(profile)};
}

absl::Status WriteKeptPlan(const KeptPlan& plan, const std::string& folder) {
  absl::Status written = WriteWholeFile((fs::path(folder) / kPlan).string(), plan.plan);
  if (!written.ok() || plan.profile.empty()) return written;
  return WriteWholeFile((fs::path(folder) / kKeptProfile).string(), plan.profile);
}

std::string KeptProfile(const std::string& folder) {
  std::error_code error;
  const fs::path profile = fs::path(folder) / kKeptProfile;
  const bool kept = fs::exists(fs::path(folder) / kPlan, error) && fs::exists(profile, error);
  return kept ? profile.string() : "";
}

}  // namespace weft
