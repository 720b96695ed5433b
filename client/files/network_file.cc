#include "client/files/network_file.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/yaml_file.h"
#include "client/files/text_file.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"

namespace weft {
namespace {

constexpr size_t kMaxNetworkBytes = 1 << 20;

}  // namespace

absl::StatusOr<NetworkSpec> ReadNetworkFile(const std::string& path) {
  const auto text = ReadTextFile(path, kMaxNetworkBytes, "a network");
  if (!text.ok()) return text.status();
  const auto yaml = ParseYaml(*text);
  if (!yaml.ok()) return InYamlFile(path, yaml.status());
  absl::Status status;
  const NetworkSpec read = ReadNetworkSpec(yaml->json, "", status);
  if (status.ok()) return read;
  const std::string place(status.GetPayload(kPathPayload).value_or(absl::Cord()));
  return absl::InvalidArgumentError(absl::StrCat(path, ":", yaml->LineOf(place), ": ", status.message()));
}

}  // namespace weft
