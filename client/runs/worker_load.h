// Joins what a coordinator says of workers and of runs: how busy each worker process is, which job it has in
// hand, why it is idle, and what its memory holds. Pure.
#ifndef WEFT_CLIENT_RUNS_WORKER_LOAD_H_
#define WEFT_CLIENT_RUNS_WORKER_LOAD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "proto/session/run_info.h"
#include "proto/session/worker_info.h"
#include "schedules/drawing/drawing.h"
#include "schedules/job.h"

namespace weft {

struct WorkerLoad {
  WorkerInfo worker;
  // Name and steps of its run; empty and 0 for a worker that serves no run.
  std::string run_name;
  int32_t steps_done = 0, steps = 0;
  std::vector<Rank> ranks;
  // Shares of the time of its ranks, which add up to about 1; none before they have reported.
  double busy = 0;
  std::map<std::string, double> idle;                     // by cause
  std::map<std::string, int64_t> live_bytes, peak_bytes;  // sums over its ranks, by class
  int64_t most_bytes = 0;                                 // sum over its ranks, of what each had at a time
};

// `runs` have the reports of their ranks. Shares are of the time since `before`, where that has the same run;
// else of the time since the run began.
std::vector<WorkerLoad> LoadsOf(const std::vector<WorkerInfo>& workers, const std::vector<RunInfo>& runs,
                                const std::vector<RunInfo>& before);

std::string LoadTable(const std::vector<WorkerLoad>& loads, const TextStyle& style = {});
nlohmann::ordered_json LoadJson(const WorkerLoad& load);

}  // namespace weft

#endif  // WEFT_CLIENT_RUNS_WORKER_LOAD_H_
