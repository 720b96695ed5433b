// Writes the jobs of a trace as OpenTelemetry spans, in the JSON form of OTLP (opentelemetry-proto 1.x,
// TracesData).
//
// One trace a run. Its root span is the run; a child of it is each step, and children of a step are its jobs
// and the transfers that they waited for. Links go along the edges of the job graph, from what waits to what
// it waited for: from a job to the transfer that brought a tensor and from the transfer to the job that made
// it; from a job straight to its predecessor where no transfer was recorded, as on one rank. So a viewer
// shows why a job began when it did, which parents alone cannot say.
//
// Each rank is a resource of its own (service.instance.id "rank 2"); run and steps are another. Ids follow
// from `key` alone: the same trace gives the same ids.
//
// Invariants: each link and parent names a span of the same output; a child's time lies within its parent's.
// Pure.
#ifndef WEFT_CLIENT_TRACE_OTLP_TRACE_H_
#define WEFT_CLIENT_TRACE_OTLP_TRACE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedules/drawing/drawing.h"
#include "schedules/graph/graph.h"

namespace weft {

struct OtlpInput {
  std::string title;           // name of the root span
  std::string key;             // identity of the trace, from which its ids are made
  int64_t begin_unix_ns = 0;   // time of 0 in `jobs` and `transfers`
  double unit_seconds = 1;     // a unit of their times
  std::vector<DrawnJob> jobs;  // at least one
  std::vector<DrawnTransfer> transfers;
  const Graph* graph = nullptr;  // of the run; null if not known: then there are no links
};

struct OtlpCounts {
  int64_t jobs = 0, transfers = 0, steps = 0;  // spans of each sort; the root span is one more
  int64_t links = 0;
};

// Hands the text to `put`, piece by piece: one line. InvalidArgument, before anything is put, for a job that
// the graph does not have.
absl::StatusOr<OtlpCounts> WriteOtlp(const OtlpInput& input,
                                     const std::function<void(absl::string_view)>& put);

}  // namespace weft

#endif  // WEFT_CLIENT_TRACE_OTLP_TRACE_H_
