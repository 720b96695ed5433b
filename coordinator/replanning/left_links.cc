#include "coordinator/replanning/left_links.h"

#include <cstdint>

#include "nlohmann/json.hpp"

namespace weft {
namespace {

using nlohmann::json;

// Returns the number of a key as it is, also a negative one; -1 for another value, or none.
double NumberOf(const json& link, const char* key) {
  const auto value = link.find(key);
  if (value == link.end() || !value->is_number()) return -1;
  return value->get<double>();
}

// Returns the rank of a key; -1 for another value, or none.
Rank RankOf(const json& link, const char* key, int ranks) {
  const auto value = link.find(key);
  if (value == link.end() || !value->is_number_integer()) return -1;
  const auto rank = value->get<int64_t>();
  return rank >= 0 && rank < ranks ? static_cast<Rank>(rank) : -1;
}

}  // namespace

std::string LeftLinksText(const RankLinks& left) {
  if (left.slow.empty()) return "";
  json slow = json::array();
  for (const SlowLink& link : left.slow) {
    slow.push_back({{"a", link.a},
                    {"b", link.b},
                    {"latency", link.latency},
                    {"bandwidth", link.bandwidth},
                    {"times", link.times}});
  }
  return json{{"slow", slow},
              {"usual", {{"latency", left.usual.latency}, {"bandwidth", left.usual.bandwidth}}}}
      .dump();
}

absl::StatusOr<RankLinks> ReadLeftLinks(const std::string& text, int ranks) {
  RankLinks left;
  if (text.empty()) return left;
  const absl::Status unreadable = absl::DataLossError("the slow links that a run has left cannot be read");
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || !value.contains("slow") || !value.contains("usual")) return unreadable;
  const json &usual = value["usual"], &slow = value["slow"];
  if (!usual.is_object() || !slow.is_array()) return unreadable;
  left.usual = {NumberOf(usual, "latency"), NumberOf(usual, "bandwidth")};
  bool sound = left.usual.latency >= 0 && left.usual.bandwidth >= 0;
  for (const json& link : slow) {
    if (!link.is_object()) return unreadable;
    const Rank a = RankOf(link, "a", ranks), b = RankOf(link, "b", ranks);
    const double latency = NumberOf(link, "latency"), bandwidth = NumberOf(link, "bandwidth");
    const double times = NumberOf(link, "times");
    sound = sound && a >= 0 && b > a && times > 0 && latency >= 0 && bandwidth >= 0;
    if (!sound) return unreadable;
    left.slow.push_back({{a, b, bandwidth, latency}, times});
  }
  return sound ? absl::StatusOr<RankLinks>(left) : unreadable;
}

}  // namespace weft
