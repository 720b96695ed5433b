#include "client/commands/top_command.h"

#include <unistd.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/runs/worker_load.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

// Answers of the coordinator at one moment.
struct Look {
  std::vector<WorkerInfo> workers;
  std::vector<RunInfo> runs;  // those that a worker serves
};

absl::StatusOr<Look> LookAround(RunsClient& client) {
  Look look;
  auto workers = client.ListWorkers();
  if (!workers.ok()) return workers.status();
  look.workers = *std::move(workers);
  std::set<uint64_t> served;
  for (const WorkerInfo& worker : look.workers) {
    if (worker.run != 0) served.insert(worker.run);
  }
  for (const uint64_t id : served) {
    auto run = client.Get(id);
    if (run.ok()) {
      look.runs.push_back(*std::move(run));
    } else if (!absl::IsNotFound(run.status())) {
      return run.status();
    }
  }
  return look;
}

std::string Text(const std::vector<WorkerLoad>& loads, size_t runs) {
  const std::string time = absl::FormatTime("%H:%M:%S", absl::Now(), absl::LocalTimeZone());
  return absl::StrCat(time, "  ", loads.size(), loads.size() == 1 ? " worker, " : " workers, ", runs,
                      runs == 1 ? " run\n\n" : " runs\n\n",
                      loads.empty() ? "no worker is connected\n" : LoadTable(loads, OutputStyle()));
}

ExitCode PrintLoads(const std::vector<WorkerLoad>& loads) {
  auto json = nlohmann::ordered_json::array();
  for (const WorkerLoad& load : loads) json.push_back(LoadJson(load));
  return PrintJson(json);
}

}  // namespace

ExitCode RunTop(const TopOptions& options) {
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const bool once = options.once || options.coordinator.json || isatty(STDOUT_FILENO) == 0;
  std::vector<RunInfo> before;
  while (true) {
    absl::StatusOr<Look> look = LookAround(**client);
    if (!look.ok()) return Fail(look.status());
    const std::vector<WorkerLoad> loads = LoadsOf(look->workers, look->runs, before);
    if (options.coordinator.json) return PrintLoads(loads);
    const std::string text = Text(loads, look->runs.size());
    if (once) return PrintData(text);
    // To the upper left, and clear from there: a picture that does not flicker.
    if (const ExitCode printed = PrintData(absl::StrCat("\x1b[H\x1b[J", text)); printed != kExitOk)
      return printed;
    before = std::move(look->runs);
    absl::SleepFor(absl::Seconds(options.interval));
  }
}

}  // namespace weft
