#include "worker/core/gradient_intake.h"

namespace weft {

bool GradientIntake::IsConsumer(const Job& job) const {
  if (HasMicrobatch(job.kind) || !graph_.protocol(job.stage).gradients_leave()) return false;
  return job.kind == JobKind::kReduce || !graph_.protocol(job.stage).has_reduce();
}

GradientIntake::Intake& GradientIntake::IntakeOf(JobId id) {
  Intake& intake = intakes_[id];
  if (intake.arrived.empty()) intake.arrived.assign(graph_.schedule().microbatches, false);
  return intake;
}

bool GradientIntake::HasNext(JobId id) {
  const Intake& intake = IntakeOf(id);
  return intake.next < static_cast<int>(intake.arrived.size()) && intake.arrived[intake.next];
}

GradientIntake::Range GradientIntake::Take(JobId id) {
  Intake& intake = IntakeOf(id);
  Range range{intake.next, intake.next};
  while (range.end < static_cast<int>(intake.arrived.size()) && intake.arrived[range.end]) ++range.end;
  intake.next = range.end;
  return range;
}

}  // namespace weft
