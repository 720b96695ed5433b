#include "client/files/network_file.h"

#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/yaml_file.h"
#include "client/files/text_file.h"
#include "nlohmann/json.hpp"
#include "run/byte_size.h"
#include "run/file_section.h"
#include "run/run_spec.h"
#include "run/unknown_name.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxNetworkBytes = 1 << 20;
constexpr double kMostOfALink = 1e30;

LinkSharing ReadSharing(FileSection& file) {
  std::string links = "pair_full";
  file.Read("links", links);
  if (links == "pair_half") return LinkSharing::kPairHalf;
  if (links == "port") return LinkSharing::kPort;
  if (links != "pair_full") {
    file.Fail("links", UnknownName("kind of links", links, {"pair_full", "pair_half", "port"}));
  }
  return LinkSharing::kPairFull;
}

// Reads a bandwidth, as 1e9 or 10GB, and a latency.
void ReadLink(FileSection& section, double* bandwidth, double* latency) {
  const Json& value = section.At("bandwidth");
  if (value.is_string()) {
    const std::optional<double> bytes = ParseByteSize(value.get<std::string>());
    if (!bytes.has_value()) section.Fail("bandwidth", "must be a number of bytes per unit of time, as 10GB");
    *bandwidth = bytes.value_or(0);
  } else {
    section.Read("bandwidth", *bandwidth, 0, kMostOfALink);
  }
  section.Read("latency", *latency, 0, kMostOfALink);
}

template <typename T>
void ReadList(FileSection& file, const char* key, const char* what, std::vector<T>* list) {
  const Json& value = file.At(key);
  if (value.is_null()) return;
  bool sound = value.is_array() && !value.empty();
  for (size_t i = 0; sound && i < value.size(); ++i) {
    sound = std::is_integral_v<T> ? value[i].is_number_integer() : value[i].is_number();
    if (sound) list->push_back(value[i].get<T>());
  }
  if (!sound) file.Fail(key, absl::StrCat("must be a list of ", what));
}

NetworkFile ReadNetwork(const Json& json, absl::Status& status) {
  NetworkFile read;
  FileSection file(json, "", {"links", "bandwidth", "latency", "nodes", "between", "speeds"}, status);
  if (!file.ok()) return read;
  read.network.links = ReadSharing(file);
  ReadLink(file, &read.bandwidth, &read.latency);
  ReadList(file, "nodes", "whole numbers, the ranks of each node, as in [4, 4]", &read.network.nodes);
  ReadList(file, "speeds", "numbers, the speed of each rank, as in [1, 0.5]", &read.network.speeds);
  if (!file.ok() || !file.Has("between")) return read;
  if (!file.Has("nodes")) {
    file.Fail("between", "is of links between nodes; say which ranks these have, as in nodes: [4, 4]");
  }
  FileSection between(file.At("between"), "between", {"bandwidth", "latency"}, status);
  if (between.ok()) ReadLink(between, &read.network.bandwidth_between, &read.network.latency_between);
  return read;
}

}  // namespace

absl::StatusOr<NetworkFile> ReadNetworkFile(const std::string& path) {
  const auto text = ReadTextFile(path, kMaxNetworkBytes, "a network");
  if (!text.ok()) return text.status();
  const auto yaml = ParseYaml(*text);
  if (!yaml.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ":", yaml.status().message()));
  absl::Status status;
  const NetworkFile read = ReadNetwork(yaml->json, status);
  if (status.ok()) return read;
  const std::string place(status.GetPayload(kPathPayload).value_or(absl::Cord()));
  return absl::InvalidArgumentError(absl::StrCat(path, ":", yaml->LineOf(place), ": ", status.message()));
}

void ApplyNetwork(const NetworkFile& file, SimulationOptions* options) {
  options->network = file.network;
  if (file.bandwidth > 0) options->bandwidth = file.bandwidth;
  if (file.latency > 0) options->latency = file.latency;
}

}  // namespace weft
