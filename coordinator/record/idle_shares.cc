#include "coordinator/record/idle_shares.h"

#include <sched.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft {
namespace {

constexpr double kLeastShown = 0.001;

double At(const IdleShares& shares, const std::string& cause) {
  const auto found = shares.find(cause);
  return found == shares.end() ? 0 : found->second;
}

// Returns shares. `time` is that of all ranks together, without `no_work`.
IdleShares Shares(IdleShares seconds, double time) {
  seconds.erase(std::string(IdleCauseName(IdleCause::kNoWork)));
  for (auto& [cause, share] : seconds) share = time > 0 ? share / time : 0;
  return seconds;
}

}  // namespace

IdleShares MeasuredIdle(const std::vector<std::map<std::string, double>>& idle_seconds,
                        const std::vector<double>& wall_seconds) {
  IdleShares sums;
  for (const auto& of_rank : idle_seconds) {
    for (const auto& [cause, seconds] : of_rank) sums[cause] += seconds;
  }
  const double wall = std::accumulate(wall_seconds.begin(), wall_seconds.end(), 0.0);
  const double work = wall - At(sums, std::string(IdleCauseName(IdleCause::kNoWork)));
  return Shares(std::move(sums), work);
}

IdleShares MeasuredIdle(const std::vector<RankReport>& reports) {
  std::vector<std::map<std::string, double>> idle;
  std::vector<double> wall;
  for (const RankReport& report : reports) {
    idle.push_back(report.idle_seconds);
    wall.push_back(report.wall_seconds);
  }
  return MeasuredIdle(idle, wall);
}

IdleShares PredictedIdle(const SimulationResult& result) {
  IdleShares sums;
  const auto by_cause = result.IdleByCause();
  for (int c = 0; c < kIdleCauses; ++c) {
    if (by_cause[c] > 0) sums[std::string(IdleCauseName(static_cast<IdleCause>(c)))] = by_cause[c];
  }
  const double all = result.makespan * static_cast<double>(result.ranks.size());
  return Shares(std::move(sums), all - by_cause[static_cast<int>(IdleCause::kNoWork)]);
}

double Sum(const IdleShares& shares) {
  double sum = 0;
  for (const auto& [cause, share] : shares) sum += share;
  return sum;
}

std::string IdleTable(const IdleShares& measured, const IdleShares& predicted, const TextStyle& style) {
  const auto percent = [](double share) { return absl::StrFormat("%.1f %%", 100 * share); };
  std::vector<std::vector<std::string>> rows = {
      {"all causes", percent(Sum(measured)), percent(Sum(predicted))}};
  for (int c = 0; c < kIdleCauses; ++c) {
    const std::string cause(IdleCauseName(static_cast<IdleCause>(c)));
    const double was = At(measured, cause), would = At(predicted, cause);
    if (std::max(was, would) >= kLeastShown) rows.push_back({cause, percent(was), percent(would)});
  }
  return FormatTable({"idle", "measured", "predicted"}, rows, style);
}

std::string CoresNote(int ranks, int cores) {
  if (ranks <= cores) return "";
  return absl::StrCat(ranks, " ranks on ", cores, cores == 1 ? " core" : " cores",
                      ": `dispatch` includes waiting for a core, and jobs take longer than alone\n");
}

void DrawWaits(const std::vector<IdleInterval>& idle, const std::vector<TransferInterval>& transfers,
               DrawingOptions* drawing) {
  for (const IdleInterval& i : idle) {
    drawing->idle.push_back({i.rank, i.start, i.end, std::string(IdleCauseName(i.cause))});
  }
  for (const TransferInterval& t : transfers) {
    drawing->transfers.push_back({t.from, t.to, t.tensor, t.consumer, t.start, t.end, t.bytes});
  }
}

int CoresOfProcess() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

}  // namespace weft
