// A run of a coordinator as text and as JSON.
#ifndef WEFT_CLIENT_RUN_VIEW_H_
#define WEFT_CLIENT_RUN_VIEW_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "proto/session/run_info.h"

namespace weft {

// Times of the runs and `now_ns` are of the wall clock.
nlohmann::ordered_json RunJson(const RunInfo& run);
std::string RunsTable(const std::vector<RunInfo>& runs, int64_t now_ns);
std::string RunText(const RunInfo& run, int64_t now_ns);

// What each rank did: busy, idle by cause, peak memory by class. At most 32 ranks.
std::string RankTable(const std::vector<RankReport>& reports);

// What is known of a rank's GPU, as "GPU 87 % busy, 63 °C, 412 W, throttled (power_cap)"; "" if nothing is.
std::string GpuText(const std::map<std::string, double>& gpu);

}  // namespace weft

#endif  // WEFT_CLIENT_RUN_VIEW_H_
