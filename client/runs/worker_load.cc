#include "client/runs/worker_load.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
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

int64_t Sum(const std::map<std::string, int64_t>& bytes) {
  int64_t sum = 0;
  for (const auto& [name, number] : bytes) sum += number;
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
    for (const auto& [name, bytes] : load.live_bytes) {
      if (bytes > 0) classes.insert(name);
    }
  }
  std::vector<std::string> header = {"worker", "state", "run", "step", "ranks", "busy"};
  header.insert(header.end(), causes.begin(), causes.end());
  header.insert(header.end(), classes.begin(), classes.end());
  header.emplace_back("alive");
  header.emplace_back("peak");
  std::vector<std::vector<std::string>> rows;
  for (const WorkerLoad& load : loads) {
    const bool serves = load.worker.run != 0, reported = !load.idle.empty();
    auto& row = rows.emplace_back();
    row = {load.worker.name,
           load.worker.state,
           serves ? absl::StrCat(load.worker.run, " ", load.run_name) : "-",
           serves ? absl::StrCat(load.steps_done, "/", load.steps) : "-",
           load.ranks.empty() ? "-" : absl::StrJoin(load.ranks, ","),
           reported ? Percent(load.busy) : "-"};
    for (const std::string& cause : causes) {
      const auto share = load.idle.find(cause);
      row.push_back(share == load.idle.end() ? "-" : Percent(share->second));
    }
    for (const std::string& name : classes) {
      const auto bytes = load.live_bytes.find(name);
      row.push_back(bytes == load.live_bytes.end() ? "-" : Bytes(bytes->second));
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
                                 {"state", load.worker.state}};
  json["run"] = load.worker.run == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(load.worker.run);
  json["steps_done"] = load.steps_done;
  json["ranks"] = load.ranks;
  json["busy_share"] = load.busy;
  json["idle_shares"] = load.idle;
  json["live_bytes"] = load.live_bytes;
  json["peak_bytes"] = load.peak_bytes;
  json["most_bytes"] = load.most_bytes;
  return json;
}

}  // namespace weft
