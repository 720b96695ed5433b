#include "run/run_schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "run/file_section.h"
#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/schedule_spec.h"
#include "run/stage_cut.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "schedules/families/leading_stages.h"
#include "schedules/simulator/network.h"
#include "schedules/sync/catalogue.h"

namespace weft {

ActivationPolicy ActivationsOf(const RunSpec& run, int stage) {
  const std::vector<std::string> names = SplitActivations(run.schedule);
  const std::string& name = names.size() == 1 ? names[0] : names.at(std::max(0, stage - run.tied_stages));
  if (name == "recompute") return ActivationPolicy::kRecompute;
  return name == "offload" ? ActivationPolicy::kOffload : ActivationPolicy::kRetain;
}

namespace {

// InvalidArgument for what a cyclic rule decides by its own order.
absl::Status CheckBesideRule(const ScheduleSpec& spec) {
  if (spec.rule == "sync") return absl::OkStatus();
  for (const char* parameter : {"order", "in_flight"}) {
    if (!spec.parameters.contains(parameter)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, ": ", parameter, " says nothing beside rule=", spec.rule,
                     ", whose order of jobs bounds the activations by itself; leave it out"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> RuledSchedule(const ScheduleSpec& spec, int stages, int microbatches) {
  if (absl::Status s = CheckBesideRule(spec); !s.ok()) return s;
  absl::StatusOr<Schedule> schedule = MakeSchedule(spec.name, spec.parameters, stages, microbatches);
  if (!schedule.ok()) return schedule;
  const absl::Status ruled = ApplyRule(spec.rule, spec.name, &*schedule);
  if (!ruled.ok()) return ruled;
  return schedule;
}

}  // namespace

ReductionMode ReductionOf(const ScheduleSpec& schedule) {
  return schedule.reduction == "fast" ? ReductionMode::kFast : ReductionMode::kOrdered;
}

absl::StatusOr<RunSchedule> MakeSchedule(const ScheduleSpec& spec, int stages, int microbatches) {
  absl::StatusOr<Schedule> scheme = RuledSchedule(spec, stages, microbatches);
  if (!scheme.ok()) return scheme.status();
  RunTerms terms;
  terms.reduction = ReductionOf(spec);
  return RunSchedule(*std::move(scheme), std::move(terms));
}

absl::StatusOr<RunSchedule> ScheduleOf(const RunSpec& run) {
  absl::StatusOr<Schedule> scheme = RuledSchedule(run.schedule, run.placed_stages(), run.train.microbatches);
  if (!scheme.ok()) return scheme.status();
  AddLeadingStages(run.tied_stages, &*scheme);
  // It is known when the run has its processes whether its devices sum together.
  RunTerms terms;
  terms.inputs = StageInputs(CountLayers(run.model), run.layers_of_stage);
  if (const absl::Status fits = CheckActivationsOfStages(run.schedule, run.placed_stages()); !fits.ok())
    return ErrorAt("schedule.activations", fits.message());
  for (int s = 0; s < run.stages(); ++s) terms.activations.push_back(ActivationsOf(run, s));
  terms.takes_norm = run.train.takes_norm();
  if (IsMigrating(*scheme->sync) && run.train.non_finite == NonFinite::kSkip) {
    return ErrorAt(
        "train.non_finite",
        absl::StrCat("skip decides for all stages at once, and ", run.schedule.name,
                     " with residency: migrating lets a stage's state go on before the gradients of all "
                     "stages are known; use stop or continue, or let the weights stay on their ranks"));
  }
  RunSchedule schedule(*std::move(scheme), std::move(terms));
  if (absl::Status s = SetMemory(run, &schedule); !s.ok()) return s;
  return schedule;
}

absl::StatusOr<ScheduledRun> ScheduledRun::Make(RunSpec spec) {
  if (spec.schedule.name.empty()) return ScheduledRun{std::move(spec), nullptr};
  absl::StatusOr<RunSchedule> schedule = ScheduleOf(spec);
  if (!schedule.ok()) return schedule.status();
  return ScheduledRun{std::move(spec), std::make_shared<const RunSchedule>(*std::move(schedule))};
}

absl::Status CheckRunNetwork(const RunSpec& run, int ranks) {
  if (!run.network.has_value()) return absl::OkStatus();
  absl::Status fits = CheckNetwork(run.network->network, ranks);
  if (!fits.ok()) fits.SetPayload(kPathPayload, absl::Cord("network"));
  return fits;
}

absl::StatusOr<RunSchedule> CheckedScheduleOf(const RunSpec& run) {
  absl::StatusOr<RunSchedule> schedule = ScheduleOf(run);
  if (!schedule.ok()) return schedule;
  if (absl::Status fits = CheckRunNetwork(run, schedule->scheme.ranks); !fits.ok()) return fits;
  const absl::Status sound = CheckSchedule(*schedule);
  if (sound.ok()) return schedule;
  if (!schedule->terms.memory.has_value()) return sound;
  schedule->terms.memory.reset();
  if (!CheckSchedule(*schedule).ok()) return sound;
  return ErrorAt("memory", absl::StrCat(sound.message(),
                                        "; give it more memory, or take smaller micro-batches, activations: "
                                        "recompute or a schedule that holds fewer activations"));
}

}  // namespace weft
