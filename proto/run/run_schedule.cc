#include "proto/run/run_schedule.h"

#include "proto/run/model_layers.h"
#include "proto/run/run_memory.h"
#include "schedules/families.h"

namespace weft {

ActivationPolicy ActivationsOf(const ScheduleSpec& schedule) {
  if (schedule.activations == "recompute") return ActivationPolicy::kRecompute;
  return schedule.activations == "offload" ? ActivationPolicy::kOffload : ActivationPolicy::kRetain;
}

absl::StatusOr<Schedule> ScheduleOf(const RunSpec& run) {
  absl::StatusOr<Schedule> schedule =
      MakeSchedule(run.schedule.name, run.schedule.parameters, run.stages(), run.train.microbatches);
  if (!schedule.ok()) return schedule;
  schedule->inputs = StageInputs(CountLayers(run.model), run.layers_of_stage);
  schedule->activations = ActivationsOf(run.schedule);
  if (absl::Status s = SetMemory(run, &*schedule); !s.ok()) return s;
  return schedule;
}

}  // namespace weft
