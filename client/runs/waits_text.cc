#include "client/runs/waits_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kStillNs = 5'000'000'000;  // without the end of a job
constexpr size_t kMostRanks = 32;            // of a table

double SecondsOf(int64_t ns) { return 1e-9 * static_cast<double>(ns); }
std::string TimeText(int64_t ns) { return FormatSeconds(SecondsOf(ns)); }

// Returns the ranks to show: all, or those of the chain from one on.
std::vector<const RankWait*> Shown(const RunWaits& waits, Rank only) {
  std::vector<const RankWait*> shown;
  if (only < 0) {
    for (const RankWait& wait : waits.ranks) shown.push_back(&wait);
    return shown;
  }
  shown.push_back(&waits.ranks[only]);
  for (const Rank rank : waits.ranks[only].chain) {
    if (rank < static_cast<Rank>(waits.ranks.size())) shown.push_back(&waits.ranks[rank]);
  }
  return shown;
}

std::vector<Rank> WaitingFor(const RunWaits& waits, int32_t root) {
  std::vector<Rank> ranks;
  for (const RankWait& wait : waits.ranks) {
    if (wait.root == root && (wait.does == "waits" || wait.does == "collective")) ranks.push_back(wait.rank);
  }
  return ranks;
}

// Returns "input_gradient of B s1 m2 t17", "end of .." where no tensor travels, and how many more are
// missing.
std::string MissingText(const RankWait& wait) {
  if (!wait.missing.has_value()) return "-";
  const TensorKind tensor = wait.missing->tensor;
  return absl::StrCat(tensor == TensorKind::kOrder ? "end" : TensorKindName(tensor), " of ",
                      JobName(wait.missing->maker),
                      wait.further == 0 ? "" : absl::StrCat(" and ", wait.further, " more"));
}

// Returns the rank that has to make the input, and what it does now: "rank 1, waits 12.0 s".
std::string MakerText(const RunWaits& waits, const RankWait& wait) {
  if (!wait.missing.has_value()) return "-";
  const Rank rank = wait.missing->rank;
  if (rank >= static_cast<Rank>(waits.ranks.size())) return absl::StrCat("rank ", rank);
  const RankWait& maker = waits.ranks[rank];
  return absl::StrCat("rank ", rank, ", ", maker.does, " ", TimeText(maker.for_ns));
}

std::string RootsText(const RunWaits& waits, Rank only) {
  std::string out;
  for (size_t i = 0; i < waits.roots.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    if (only >= 0 && waits.ranks[only].root != index) continue;
    absl::StrAppend(&out, "root ", i, ": ", waits.roots[i].sentence, "\n");
    std::vector<Rank> ranks = WaitingFor(waits, index);
    if (ranks.empty()) continue;
    const bool one = ranks.size() == 1;
    const size_t more = ranks.size() - std::min(ranks.size(), kMostRanks);
    ranks.resize(ranks.size() - more);
    absl::StrAppend(&out, "        ", one ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
                    more == 0 ? "" : absl::StrCat(" and ", more, " more"),
                    one ? " waits for it\n" : " wait for it\n");
  }
  return out;
}

OrderedJson JobOrNull(const std::optional<Job>& job) {
  return job.has_value() ? JobJson(*job) : OrderedJson();
}

OrderedJson RankJson(const RankWait& wait) {
  OrderedJson json = {{"rank", wait.rank},
                      {"process", wait.process},
                      {"does", wait.does},
                      {"job", JobOrNull(wait.job)},
                      {"seconds", SecondsOf(wait.for_ns)}};
  json["missing"] = OrderedJson();
  if (wait.missing.has_value()) {
    json["missing"] = {{"tensor", std::string(TensorKindName(wait.missing->tensor))},
                       {"job", JobJson(wait.missing->maker)},
                       {"rank", wait.missing->rank}};
  }
  json["further"] = wait.further;
  json["root"] = wait.root < 0 ? OrderedJson() : OrderedJson(wait.root);
  return json;
}

}  // namespace

bool StandsStill(const RunWaits& waits) { return waits.still_ns >= kStillNs; }

OrderedJson JobJson(const Job& job) {
  OrderedJson json = {{"name", JobName(job)},
                      {"kind", std::string(JobKindName(job.kind))},
                      {"step", job.step},
                      {"stage", job.stage}};
  HasMicrobatch(job.kind) ? json["microbatch"] = job.microbatch : json["member"] = job.member;
  return json;
}

std::string WaitsText(const RunWaits& waits, Rank only, const TextStyle& style) {
  std::string out = absl::StrCat("run ", waits.run, " (", waits.name, ") is ", RunStateName(waits.state));
  if (!waits.reason.empty()) absl::StrAppend(&out, ": ", waits.reason);
  if (waits.still_ns < 0) return absl::StrCat(out, "\n");
  absl::StrAppend(&out, "; no job has ended for ", TimeText(waits.still_ns), "\n", RootsText(waits, only));
  std::vector<std::vector<std::string>> rows;
  const std::vector<const RankWait*> shown = Shown(waits, only);
  for (const RankWait* wait : shown) {
    if (rows.size() == kMostRanks) break;
    rows.push_back({absl::StrCat(wait->rank), wait->does, TimeText(wait->for_ns),
                    wait->job.has_value() ? JobName(*wait->job) : "-", MissingText(*wait),
                    MakerText(waits, *wait), wait->root < 0 ? "-" : absl::StrCat(wait->root)});
  }
  absl::StrAppend(
      &out, "\n",
      FormatTable({"rank", "does", "for", "job", "missing input", "made by", "root"}, rows, style));
  if (shown.size() > rows.size())
    absl::StrAppend(&out, ".. and ", shown.size() - rows.size(), " more ranks; -o json has them all\n");
  return out;
}

OrderedJson WaitsJson(const RunWaits& waits, Rank only) {
  OrderedJson json = {{"run", waits.name},
                      {"number", waits.run},
                      {"state", std::string(RunStateName(waits.state))},
                      {"reason", waits.reason}};
  json["still_seconds"] = waits.still_ns < 0 ? OrderedJson() : OrderedJson(SecondsOf(waits.still_ns));
  json["roots"] = OrderedJson::array();
  for (size_t i = 0; i < waits.roots.size(); ++i) {
    const WaitRoot& root = waits.roots[i];
    json["roots"].push_back({{"kind", root.kind},
                             {"process", root.process},
                             {"rank", root.rank < 0 ? OrderedJson() : OrderedJson(root.rank)},
                             {"job", JobOrNull(root.job)},
                             {"seconds", SecondsOf(root.for_ns)},
                             {"sentence", root.sentence},
                             {"waiting_ranks", WaitingFor(waits, static_cast<int32_t>(i))}});
  }
  json["ranks"] = OrderedJson::array();
  for (const RankWait* wait : Shown(waits, only)) json["ranks"].push_back(RankJson(*wait));
  return json;
}

}  // namespace weft
