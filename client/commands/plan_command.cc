#include "client/commands/plan_command.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "client/planning/make_plan.h"
#include "client/planning/measured_plan.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

ExitCode PlanAnew(const PlanOptions& options) {
  const auto plan = PlanFromRun({options.from, options.profile, options.memory, options.bandwidth,
                                 options.latency, options.time_limit});
  if (absl::IsResourceExhausted(plan.status())) {
    if (options.output == "json") PrintJson({{"from", options.from}, {"fits", false}});
    return Fail(kExitFailed, plan.status().message());
  }
  if (!plan.ok()) return Fail(kExitBadConfiguration, plan.status().message());
  if (options.output == "json") return PrintJson(MeasuredPlanJson(*plan));
  if (options.output == "yaml") PrintMessage(Sentence(plan->better, plan->measured));
  return PrintData(options.output == "yaml" ? MeasuredPlanYaml(*plan) : MeasuredPlanTable(*plan));
}

}  // namespace

ExitCode RunPlanCommand(const PlanOptions& options) {
  if (!options.from.empty()) return PlanAnew(options);
  const auto wanted = ParseWantedPlan(options.schedule);
  if (!wanted.ok()) return Fail(kExitUsage, wanted.status().message());
  const auto source = ReadPlanSource({options.file, options.profile, options.flops, options.memory,
                                      options.bandwidth, options.latency, options.network,
                                      options.microbatches, options.host_bandwidth, options.schedule});
  if (absl::IsOutOfRange(source.status())) return Fail(kExitUsage, source.status().message());
  if (!source.ok()) return Fail(kExitBadConfiguration, source.status().message());
  if (options.vary_microbatches && !source->run.has_value()) {
    return Fail(kExitUsage,
                "--vary has no effect, because a profile has no batch to cut; give a run file and --profile");
  }
  if (source->LacksHostBandwidth()) {
    PrintMessage(absl::StrCat(source->names_activations ? options.schedule : options.file,
                              " has `activations: offload`. How long its copies take is not known, so ",
                              source->MayOffload()
                                  ? "all stages are planned to offload, with copies that take no time"
                                  : "no stage is planned to offload",
                              "; give --host-bandwidth, or a profile with `host_bandwidth`"));
  }
  const auto report =
      MakePlan(*source, *wanted, {options.workers, options.time_limit, options.vary_microbatches});
  if (report.status().code() == absl::StatusCode::kResourceExhausted) {
    if (options.output == "json") {
      const std::string shown = wanted->family.empty() ? "periodic" : wanted->family;
      PrintJson({{"schedule", shown}, {"fits", false}});
    }
    return Fail(kExitFailed, report.status().message());
  }
  if (absl::IsDeadlineExceeded(report.status())) return Fail(kExitFailed, report.status().message());
  if (absl::IsOutOfRange(report.status())) return Fail(kExitUsage, report.status().message());
  if (!report.ok()) return Fail(kExitBadConfiguration, report.status().message());
  if (options.output == "json") return PrintJson(PlanJson(*report));
  return PrintData(options.output == "yaml" ? PlanYaml(*report) : PlanTable(*report, OutputStyle()));
}

}  // namespace weft
