#include "worker/core/gradient_intake.h"

namespace weft {

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
