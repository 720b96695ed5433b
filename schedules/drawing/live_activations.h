// Counts the activations that are alive over all ranks at a time, and their bytes, from jobs with their
// times: of a simulation, or of a trace of a real run.
//
// An activation is alive from the start of its forward to the end of its backward (or backward_weight); where
// these are on different ranks, each rank has one from the start to the end of its own job. Forwards whose
// backward is not among the jobs, and backwards without their forward, are not counted. Pure.
#ifndef WEFT_SCHEDULES_DRAWING_LIVE_ACTIVATIONS_H_
#define WEFT_SCHEDULES_DRAWING_LIVE_ACTIVATIONS_H_

#include <vector>

#include "absl/types/span.h"
#include "schedules/drawing/drawing.h"

namespace weft {

struct LiveActivations {
  // Activations that are alive from `time` until the next point.
  struct Point {
    double time = 0;
    int activations = 0;
    double bytes = 0;
  };
  std::vector<Point> points;  // by time, each later than the one before; the last has nothing alive
  int peak_activations = 0;
  double peak_bytes = 0;
  double mean_activations = 0, mean_bytes = 0;  // over the time from the first point to the last
};

// Counts the activations of `jobs`. `activation_bytes`: bytes of one micro-batch's activation by stage; of
// size 1 (for every stage) or S.
LiveActivations CountLiveActivations(absl::Span<const DrawnJob> jobs,
                                     const std::vector<double>& activation_bytes);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DRAWING_LIVE_ACTIVATIONS_H_
