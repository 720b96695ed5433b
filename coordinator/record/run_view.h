// Shows a run of a coordinator as text and as JSON.
#ifndef WEFT_COORDINATOR_RECORD_RUN_VIEW_H_
#define WEFT_COORDINATOR_RECORD_RUN_VIEW_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "proto/session/run_info.h"
#include "proto/session/worker_info.h"
#include "schedules/drawing/drawing.h"

namespace weft {

// Times of the runs and `now_ns` are of the wall clock.
nlohmann::ordered_json RunJson(const RunInfo& run);
std::string RunsTable(const std::vector<RunInfo>& runs, int64_t now_ns, const TextStyle& style = {});
std::string RunText(const RunInfo& run, int64_t now_ns, const TextStyle& style = {});

// Return parts of RunText: how long the run has been going on, or went on ("-" before it began); "4 ranks on
// 2 processes"; "loss 1.25, accuracy 0.5000"; the same " after step 8"; "0.5000".
std::string DurationText(const RunInfo& run, int64_t now_ns);
std::string RanksOnProcesses(const RunInfo& run);
std::string FiguresText(const Validation& validation);
std::string ValidatedText(const Validation& validation);
std::string MetricText(double value);

// The cells of a table.
struct TextCells {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};
// Return the cells of RunsTable and WorkersTable, and of RankTable's two halves: times and bytes.
TextCells RunsCells(const std::vector<RunInfo>& runs, int64_t now_ns);
TextCells WorkersCells(const std::vector<WorkerInfo>& workers);
TextCells RankTimeCells(const std::vector<RankReport>& reports);
TextCells RankByteCells(const std::vector<RankReport>& reports);

nlohmann::ordered_json WorkerJson(const WorkerInfo& worker);
std::string WorkersTable(const std::vector<WorkerInfo>& workers, const TextStyle& style = {});

// Returns a table of the ranks: busy, idle by cause, peak memory by class; in two tables if one is too wide.
// It shows at most 32 ranks.
std::string RankTable(const std::vector<RankReport>& reports, const TextStyle& style = {});

// Describes a rank's GPU, as "GPU 87 % busy, 63 °C, 412 W, throttled (power_cap)"; "" if nothing is known.
std::string GpuText(const std::map<std::string, double>& gpu, const TextStyle& style = {});

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_RUN_VIEW_H_
