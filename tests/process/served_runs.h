// Serves runs of tests in this process: a coordinator's server whose specifications are names of schedules of
// 2 stages and 4 micro-batches, and options of a scripted worker that computes them.
#ifndef WEFT_TESTS_PROCESS_SERVED_RUNS_H_
#define WEFT_TESTS_PROCESS_SERVED_RUNS_H_

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "coordinator/shell/coordinator_server.h"
#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "tests/process/quick_planner.h"
#include "tests/process/scripted_worker.h"
#include "tests/unit/without_terms.h"

namespace weft {

inline constexpr int kServedSteps = 5;  // of a run

inline absl::StatusOr<std::shared_ptr<const RunPlan>> PlanOfSchedule(const std::string& spec) {
  absl::StatusOr<Schedule> schedule = MakeSchedule(spec, {}, 2, 4);
  if (!schedule.ok()) return schedule.status();
  return MakeRunPlan("test", spec, WithoutTerms(*std::move(schedule)), kServedSteps);
}

// Starts a server at the address.
inline std::unique_ptr<CoordinatorServer> ServeSchedules(const std::string& address) {
  CoordinatorServerOptions options;
  options.listen = {address};
  options.planner = QuickPlanner(PlanOfSchedule);
  return *CoordinatorServer::Start(std::move(options));
}

class ServedRuns : public ::testing::Test {
 protected:
  ServedRuns() {
    worker_options.address = server->addresses()[0];
    worker_options.name = std::string("w");
    worker_options.stages = 2;
  }

  const std::unique_ptr<CoordinatorServer> server =
      ServeSchedules(absl::StrCat("unix:", testing::TempDir(), "/weft-runs-", getpid(), ".sock"));
  ScriptedWorkerOptions worker_options;
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_SERVED_RUNS_H_
