#include "client/runs/worker_load.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/runs/waits_text.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr double kLeastShare = 5e-4;  // of an idle time that is worth a column

const RunInfo* Find(const std::vector<RunInfo>& runs, uint64_t id) {
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const RunInfo& r) { return r.id == id; });
  return found == runs.end() ? nullptr : &*found;
}

const RankReport* Find(const RunInfo* run, Rank rank) {
  if (run == nullptr) return nullptr;
  for (const RankReport& r : run->reports) {
    if (r.rank == rank) return &r;
  }
  return nullptr;
}

// Adds to each of `sums` what has come to it since `before`, which may be null.
void AddSince(const std::map<std::string, double>& now, const std::map<std::string, double>* before,
              std::map<std::string, double>* sums) {
  for (const auto& [name, seconds] : now) {
    const auto found = before == nullptr ? now.end() : before->find(name);
    const bool known = before != nullptr && found != before->end();
    (*sums)[name] += std::max(0.0, seconds - (known ? found->second : 0));
  }
}

// Returns the bytes of the classes that a rank's `most_bytes` counts: of all but copies in the host's memory.
int64_t Sum(const std::map<std::string, int64_t>& bytes) {
  static const auto* const kBeside = new std::set<std::string>{"copies", "host", "snapshots"};
  int64_t sum = 0;
  for (const auto& [name, number] : bytes) {
    if (kBeside->count(name) == 0) sum += number;
  }
  return sum;
}

void AddReports(const RunInfo& run, const RunInfo* before, WorkerLoad* load) {
  std::map<std::string, double> busy;
  for (const Rank rank : load->ranks) {
    const RankReport* now = Find(&run, rank);
    if (now == nullptr) continue;
    const RankReport* then = Find(before, rank);
    if (then != nullptr && then->wall_seconds >= now->wall_seconds) then = nullptr;
    AddSince(now->busy_seconds, then == nullptr ? nullptr : &then->busy_seconds, &busy);
    AddSince(now->idle_seconds, then == nullptr ? nullptr : &then->idle_seconds, &load->idle);
    for (const auto& [name, bytes] : now->live_bytes) load->live_bytes[name] += bytes;
    for (const auto& [name, bytes] : now->peak_bytes) load->peak_bytes[name] += bytes;
    // A worker of an older version says no such figure.
    load->most_bytes += now->most_bytes != 0 ? now->most_bytes : Sum(now->peak_bytes);
  }
  for (const auto& [kind, seconds] : busy) load->busy += seconds;
  double all = load->busy;
  for (const auto& [cause, seconds] : load->idle) all += seconds;
  if (all <= 0) return;
  load->busy /= all;
  for (auto& [cause, seconds] : load->idle) seconds /= all;
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }
std::string Bytes(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

int64_t At(const std::map<std::string, int64_t>& bytes, const std::string& name) {
  const auto found = bytes.find(name);
  return found == bytes.end() ? 0 : found->second;
}

// Returns "F s2 m3 t17 for 1.5 s, B s0 m1 t17 and 2 more".
std::string JobsText(const std::vector<WorkerInfo::JobInHand>& jobs) {
  constexpr size_t kShown = 2;
  std::vector<std::string> texts;
  for (const WorkerInfo::JobInHand& j : jobs) {
    if (texts.size() == kShown) break;
    const double seconds = 1e-9 * static_cast<double>(j.age_ns);
    texts.push_back(
        absl::StrCat(JobName(j.job), j.age_ns == 0 ? "" : absl::StrCat(" for ", FormatSeconds(seconds))));
  }
  if (texts.empty()) return "-";
  const size_t more = jobs.size() - texts.size();
  return absl::StrCat(absl::StrJoin(texts, ", "), more == 0 ? "" : absl::StrCat(" and ", more, " more"));
}

}  // namespace

std::vector<WorkerLoad> LoadsOf(const std::vector<WorkerInfo>& workers, const std::vector<RunInfo>& runs,
                                const std::vector<RunInfo>& before) {
  std::vector<WorkerLoad> loads;
  for (const WorkerInfo& worker : workers) {
    WorkerLoad& load = loads.emplace_back();
    load.worker = worker;
    const RunInfo* run = worker.run == 0 ? nullptr : Find(runs, worker.run);
    if (run == nullptr) continue;
    load.run_name = run->name;
    load.steps_done = run->steps_done;
    load.steps = run->steps;
    const std::string label = WorkerLabel(worker);
    for (size_t rank = 0; rank < run->member_of_rank.size(); ++rank) {
      const auto member = static_cast<size_t>(run->member_of_rank[rank]);
      if (member < run->members.size() && run->members[member] == label)
        load.ranks.push_back(static_cast<Rank>(rank));
    }
    AddReports(*run, Find(before, run->id), &load);
  }
  return loads;
}

std::string LoadTable(const std::vector<WorkerLoad>& loads, const TextStyle& style) {
  std::set<std::string> causes, classes;
  for (const WorkerLoad& load : loads) {
    for (const auto& [cause, share] : load.idle) {
      if (share >= kLeastShare) causes.insert(cause);
    }
    for (const auto* of_class : {&load.live_bytes, &load.peak_bytes}) {
      for (const auto& [name, bytes] : *of_class) {
        if (bytes > 0) classes.insert(name);
      }
    }
  }
  std::vector<std::string> header = {"worker", "state", "run", "step", "ranks", "job", "busy"};
  header.insert(header.end(), causes.begin(), causes.end());
  for (const std::string& name : classes) header.push_back(absl::StrCat(name, "/peak"));
  header.emplace_back("alive");
  header.emplace_back("peak");
  std::vector<std::vector<std::string>> rows;
  for (const WorkerLoad& load : loads) {
    const bool serves = load.worker.run != 0, reported = !load.idle.empty();
    auto& row = rows.emplace_back();
    row = {load.worker.name,
           WorkerStateText(load.worker),
           serves ? absl::StrCat(load.worker.run, " ", load.run_name) : "-",
           serves ? absl::StrCat(load.steps_done, "/", load.steps) : "-",
           load.ranks.empty() ? "-" : absl::StrJoin(load.ranks, ","),
           JobsText(load.worker.jobs),
           reported ? Percent(load.busy) : "-"};
    for (const std::string& cause : causes) {
      const auto share = load.idle.find(cause);
      row.push_back(share == load.idle.end() ? "-" : Percent(share->second));
    }
    for (const std::string& name : classes) {
      const int64_t live = At(load.live_bytes, name), peak = At(load.peak_bytes, name);
      row.push_back(peak == 0 ? "-" : absl::StrCat(Bytes(live), "/", Bytes(peak)));
    }
    row.push_back(reported ? Bytes(Sum(load.live_bytes)) : "-");
    row.push_back(reported ? Bytes(load.most_bytes) : "-");
  }
  return FormatTable(header, rows, style);
}

nlohmann::ordered_json LoadJson(const WorkerLoad& load) {
  nlohmann::ordered_json json = {{"process", load.worker.process},
                                 {"name", load.worker.name},
                                 {"host", load.worker.host},
                                 {"state", load.worker.state},
                                 {"silent_seconds", 1e-9 * static_cast<double>(load.worker.silent_ns)}};
  json["run"] = load.worker.run == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(load.worker.run);
  json["steps_done"] = load.steps_done;
  json["ranks"] = load.ranks;
  json["jobs"] = nlohmann::ordered_json::array();
  for (const WorkerInfo::JobInHand& j : load.worker.jobs) {
    nlohmann::ordered_json job = JobJson(j.job);
    job["rank"] = j.rank;
    job["seconds"] = j.age_ns == 0 ? nlohmann::ordered_json()
                                   : nlohmann::ordered_json(1e-9 * static_cast<double>(j.age_ns));
    json["jobs"].push_back(std::move(job));
  }
  json["busy_share"] = load.busy;
  json["idle_shares"] = load.idle;
  json["live_bytes"] = load.live_bytes;
  json["peak_bytes"] = load.peak_bytes;
  json["most_bytes"] = load.most_bytes;
  return json;
}

}  // namespace weft
