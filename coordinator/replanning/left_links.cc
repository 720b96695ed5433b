#include "coordinator/replanning/left_links.h"

#include "nlohmann/json.hpp"

namespace weft {
namespace {

using nlohmann::json;

// Returns the finite number >= 0 of a key; -1 for another value, or none.
double NumberOf(const json& link, const char* key) {
  const auto value = link.find(key);
  if (value == link.end() || !value->is_number()) return -1;
  return value->get<double>();
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

absl::StatusOr<RankLinks> ReadLeftLinks(const std::string& text) {
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
    const double a = NumberOf(link, "a"), b = NumberOf(link, "b"), times = NumberOf(link, "times");
    const double latency = NumberOf(link, "latency"), bandwidth = NumberOf(link, "bandwidth");
    sound = sound && a >= 0 && b > a && b < 1e9 && times > 0 && latency >= 0 && bandwidth >= 0;
    if (!sound) return unreadable;
    left.slow.push_back({{static_cast<Rank>(a), static_cast<Rank>(b), bandwidth, latency}, times});
  }
  return sound ? absl::StatusOr<RankLinks>(left) : unreadable;
}

}  // namespace weft
