#include "run/network_spec.h"

#include <array>
#include <climits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "run/byte_size.h"
#include "run/file_section.h"
#include "run/unknown_name.h"
#include "schedules/simulator/simulate.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr double kMostOfALink = 1e30;
constexpr double kLeastSpeed = 1e-9, kMostSpeed = 1e9;
constexpr std::array<const char*, 3> kLinksNames = {"pair_full", "pair_half", "port"};  // of LinkSharing

LinkSharing ReadSharing(FileSection& section) {
  std::string links = kLinksNames[0];
  section.Read("links", links);
  for (size_t i = 0; i < kLinksNames.size(); ++i) {
    if (links == kLinksNames[i]) return static_cast<LinkSharing>(i);
  }
  section.Fail("links", UnknownName("kind of links", links, {kLinksNames.begin(), kLinksNames.end()}));
  return LinkSharing::kPairFull;
}

// Reads a bandwidth, as 1e9 or 10GB, and a latency.
void ReadLink(FileSection& section, double* bandwidth, double* latency) {
  const Json& value = section.At("bandwidth");
  if (section.ok() && value.is_string()) {
    const std::optional<double> bytes = ParseByteSize(value.get<std::string>());
    if (!bytes.has_value()) section.Fail("bandwidth", "must be a number of bytes per unit of time, as 10GB");
    *bandwidth = bytes.value_or(0);
    if (section.ok() && !(*bandwidth >= kLeastOfALink && *bandwidth <= kMostOfALink))
      section.Fail("bandwidth", absl::StrCat("must be from ", kLeastOfALink, " to ", kMostOfALink));
  } else {
    section.Read("bandwidth", *bandwidth, kLeastOfALink, kMostOfALink);
  }
  section.Read("latency", *latency, 0, kMostOfALink);
}

// Returns the list of a key, whose values must be numbers, and whole ones for `whole`; nothing where it
// fails.
const Json* ListAt(FileSection& section, const char* key, const char* what, bool whole) {
  const Json& list = section.At(key);
  if (!section.ok() || list.is_null()) return nullptr;
  bool sound = list.is_array() && !list.empty();
  for (size_t i = 0; sound && i < list.size(); ++i)
    sound = whole ? list[i].is_number_integer() : list[i].is_number();
  if (!sound) section.Fail(key, absl::StrCat("must be a list of ", what));
  return sound ? &list : nullptr;
}

std::string EntryOf(const char* key, size_t i) { return absl::StrCat(key, "[", i, "]"); }

void ReadNodes(FileSection& section, std::vector<int>* nodes) {
  const Json* list = ListAt(section, "nodes", "whole numbers, the ranks of each node, as in [4, 4]", true);
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const auto ranks = (*list)[i].get<int64_t>();
    if (ranks < 1 || ranks > INT_MAX / 2) {
      section.Fail(EntryOf("nodes", i), absl::StrCat("a node has at least 1 rank, not ", (*list)[i].dump()));
    }
    nodes->push_back(static_cast<int>(ranks));
  }
}

void ReadSpeeds(FileSection& section, std::vector<double>* speeds) {
  const Json* list = ListAt(section, "speeds", "numbers, the speed of each rank, as in [1, 0.5]", false);
  for (size_t r = 0; list != nullptr && r < list->size(); ++r) {
    const auto speed = (*list)[r].get<double>();
    if (!(speed >= kLeastSpeed && speed <= kMostSpeed)) {
      section.Fail(EntryOf("speeds", r),
                   absl::StrCat("the speed of rank ", r, " must be from ", kLeastSpeed, " to ", kMostSpeed,
                                ", not ", (*list)[r].dump(), "; 1 is the speed at which the times hold"));
    }
    speeds->push_back(speed);
  }
}

// Writes what ReadLink reads.
void WriteLink(double bandwidth, double latency, Json* json) {
  if (bandwidth > 0) (*json)["bandwidth"] = bandwidth;
  if (latency > 0) (*json)["latency"] = latency;
}

}  // namespace

bool NetworkSpec::slow_links() const {
  return bandwidth > 0 || latency > 0 || network.bandwidth_between > 0 || network.latency_between > 0;
}

NetworkSpec ReadNetworkSpec(const Json& value, const std::string& path, absl::Status& status) {
  NetworkSpec read;
  FileSection section(value, path, {"links", "bandwidth", "latency", "nodes", "between", "speeds"}, status);
  if (!section.ok()) return read;
  read.network.links = ReadSharing(section);
  ReadLink(section, &read.bandwidth, &read.latency);
  ReadNodes(section, &read.network.nodes);
  ReadSpeeds(section, &read.network.speeds);
  if (!section.ok() || !section.Has("between")) return read;
  if (!section.Has("nodes")) {
    section.Fail("between", "is of links between nodes; say which ranks these have, as in nodes: [4, 4]");
  }
  FileSection between(section.At("between"), section.PathOf("between"), {"bandwidth", "latency"}, status);
  if (between.ok()) ReadLink(between, &read.network.bandwidth_between, &read.network.latency_between);
  return read;
}

Json ToJson(const NetworkSpec& spec) {
  const Network& network = spec.network;
  Json json = {{"links", kLinksNames[static_cast<size_t>(network.links)]}};
  WriteLink(spec.bandwidth, spec.latency, &json);
  if (!network.nodes.empty()) json["nodes"] = network.nodes;
  if (!network.speeds.empty()) json["speeds"] = network.speeds;
  Json between = Json::object();
  WriteLink(network.bandwidth_between, network.latency_between, &between);
  if (!between.empty()) json["between"] = std::move(between);
  return json;
}

void ApplyNetwork(const NetworkSpec& network, SimulationOptions* options) {
  options->network = network.network;
  if (network.bandwidth > 0) options->bandwidth = network.bandwidth;
  if (network.latency > 0) options->latency = network.latency;
}

}  // namespace weft
