// Says what is predicted of a run's memory, for scripts that compare it with what the run counted.
//
//     counted_peaks least RUN.yaml          prints the least budget that is admitted, in bytes; 0 for none
//     counted_peaks peaks RUN.yaml OUT [--separate-memory]
//
// The second prints, as JSON, a list by rank of the range of each class, [least, most], from the order of
// jobs in OUT/trace.json. --separate-memory: no two ranks share memory.
#include <cstdint>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/files/run_file.h"
#include "client/files/trace_file.h"
#include "nlohmann/json.hpp"
#include "run/run_peaks.h"
#include "run/run_schedule.h"

namespace weft {
namespace {

int Fail(const absl::Status& status) {
  std::cerr << "counted_peaks: " << status.message() << "\n";
  return 1;
}

int PrintLeast(const std::string& file) {
  auto run = ReadRunFile(file, RunFileData::kIgnored);
  if (!run.ok()) return Fail(run.status());
  int64_t refused = 0, admitted = int64_t{1} << 40;
  const auto fits = [&](int64_t bytes) {
    run->memory = bytes;
    return CheckedScheduleOf(*run).ok();
  };
  if (!fits(admitted)) {
    std::cout << 0 << "\n";
    return 0;
  }
  while (admitted - refused > 1) {
    const int64_t middle = refused + (admitted - refused) / 2;
    (fits(middle) ? admitted : refused) = middle;
  }
  std::cout << admitted << "\n";
  return 0;
}

int PrintPeaks(const std::string& file, const std::string& out, bool separate) {
  const auto run = ReadRunFile(file, RunFileData::kIgnored);
  if (!run.ok()) return Fail(run.status());
  const auto schedule = ScheduleOf(*run);
  if (!schedule.ok()) return Fail(schedule.status());
  const auto trace = ReadTrace(out + "/trace.json");
  if (!trace.ok()) return Fail(trace.status());
  std::vector<SimulatedJob> jobs;
  for (const DrawnJob& j : trace->jobs) jobs.push_back({j.job, j.rank, j.start, j.end});
  std::optional<MemoryOfRank> own;
  if (separate) {
    own.emplace(schedule->scheme.ranks);
    std::iota(own->begin(), own->end(), 0);
  }
  auto json = nlohmann::json::array();
  for (const PeakBytes& peak : CountPeaks(*run, *schedule, jobs, own)) {
    json.push_back({{"weights", {peak.least.weights, peak.most.weights}},
                    {"gradients", {peak.least.gradients, peak.most.gradients}},
                    {"optimizer", {peak.least.optimizer, peak.most.optimizer}},
                    {"activations", {peak.least.activations, peak.most.activations}},
                    {"buffers", {peak.least.buffers, peak.most.buffers}},
                    {"received", {peak.least.received, peak.most.received}}});
  }
  std::cout << json.dump() << "\n";
  return 0;
}

int Main(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "least") return PrintLeast(words[1]);
  const bool separate = !words.empty() && words.back() == "--separate-memory";
  if (words.size() == 3U + (separate ? 1 : 0) && words[0] == "peaks")
    return PrintPeaks(words[1], words[2], separate);
  std::cerr << "counted_peaks least RUN.yaml | peaks RUN.yaml OUT [--separate-memory]\n";
  return 2;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main({argv + 1, argv + argc}); }
