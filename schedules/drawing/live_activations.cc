#include "schedules/drawing/live_activations.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace weft {
namespace {

// The jobs of one micro-batch on one stage.
struct Passes {
  const DrawnJob* forward = nullptr;
  const DrawnJob* first = nullptr;  // the backward, or its half for the input
  const DrawnJob* last = nullptr;   // the backward, or its half for the weights
};

struct Change {
  double time;
  int activations;  // +1 or -1
  double bytes;
};

std::map<std::tuple<int, int, int>, Passes> PassesOf(absl::Span<const DrawnJob> jobs) {
  std::map<std::tuple<int, int, int>, Passes> passes;
  for (const DrawnJob& j : jobs) {
    if (!HasMicrobatch(j.job.kind)) continue;
    Passes& pass = passes[{j.job.step, j.job.stage, j.job.microbatch}];
    if (j.job.kind == JobKind::kForward) pass.forward = &j;
    if (j.job.kind == JobKind::kBackward || j.job.kind == JobKind::kBackwardInput) pass.first = &j;
    if (j.job.kind == JobKind::kBackward || j.job.kind == JobKind::kBackwardWeight) pass.last = &j;
  }
  return passes;
}

std::vector<Change> Changes(absl::Span<const DrawnJob> jobs, const std::vector<double>& activation_bytes) {
  std::vector<Change> changes;
  const auto alive = [&](double from, double to, int stage) {
    const double bytes = activation_bytes.size() == 1 ? activation_bytes[0] : activation_bytes[stage];
    changes.push_back({from, 1, bytes});
    changes.push_back({to, -1, -bytes});
  };
  for (const auto& [key, pass] : PassesOf(jobs)) {
    if (pass.forward == nullptr || pass.first == nullptr || pass.last == nullptr) continue;
    const int stage = std::get<1>(key);
    if (pass.forward->rank == pass.first->rank) {
      alive(pass.forward->start, pass.last->end, stage);
    } else {
      alive(pass.forward->start, pass.forward->end, stage);
      alive(pass.first->start, pass.last->end, stage);
    }
  }
  // Ends sort before beginnings at the same instant: they make room.
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.time, a.activations) < std::tie(b.time, b.activations);
  });
  return changes;
}

}  // namespace

LiveActivations CountLiveActivations(absl::Span<const DrawnJob> jobs,
                                     const std::vector<double>& activation_bytes) {
  LiveActivations live;
  LiveActivations::Point now;
  double area = 0, byte_area = 0;
  for (const Change& change : Changes(jobs, activation_bytes)) {
    if (!live.points.empty()) {
      area += (change.time - now.time) * now.activations;
      byte_area += (change.time - now.time) * now.bytes;
    }
    now.time = change.time;
    now.activations += change.activations;
    // Sums of differences do not come back to nothing exactly.
    now.bytes = now.activations == 0 ? 0 : now.bytes + change.bytes;
    if (!live.points.empty() && live.points.back().time == now.time) {
      live.points.back() = now;
    } else {
      live.points.push_back(now);
    }
  }
  for (const LiveActivations::Point& p : live.points) {
    live.peak_activations = std::max(live.peak_activations, p.activations);
    live.peak_bytes = std::max(live.peak_bytes, p.bytes);
  }
  if (live.points.empty()) return live;
  const double span = live.points.back().time - live.points.front().time;
  if (span > 0) {
    live.mean_activations = area / span;
    live.mean_bytes = byte_area / span;
  }
  return live;
}

}  // namespace weft
