// Converts the run API between protobuf and values, and validates it. See session_codec.h.
//
// Times on the wire are of the wall clock; inside they are of the coordinator's monotonic clock. The caller
// gives the difference.
#ifndef WEFT_PROTO_WIRE_RUNS_CODEC_H_
#define WEFT_PROTO_WIRE_RUNS_CODEC_H_

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/session/run_info.h"
#include "proto/session/run_log.h"
#include "proto/session/run_waits.h"
#include "proto/session/worker_info.h"
#include "weft/v1/runs.pb.h"

namespace weft {

struct SubmitRequest {
  std::string request;     // "" or a name: submitting it again with the same content returns the same run
  std::string spec;        // the run file as JSON
  int32_t processes = 0;   // 0: one a rank
  std::string output;      // folder of the results; "" for one of the coordinator's choice
  bool overwrite = false;  // replaces the results of a former run in the folder
  std::string file = {};   // name of the run file, for people
  QueueTerms terms = {};   // the coordinator fills in the owner, who is not on the wire
};

// Ranks of a run that are to move to a worker, named or given by the number of its process.
struct MoveRequest {
  uint64_t run = 0;
  std::vector<Rank> ranks;
  std::string worker;
  std::string reason = {};
};

using RunEvent = std::variant<RunInfo, StepDone>;

namespace wire {

void Encode(const SubmitRequest& request, v1::SubmitRequest* out);
absl::StatusOr<SubmitRequest> Decode(const v1::SubmitRequest& in);

void Encode(const MoveRequest& request, v1::MoveRequest* out);
absl::StatusOr<MoveRequest> Decode(const v1::MoveRequest& in);

void Encode(const RunInfo& run, int64_t unix_minus_monotonic_ns, v1::Run* out);
absl::StatusOr<RunInfo> Decode(const v1::Run& in);  // times stay those of the wall clock

void Encode(const WorkerInfo& worker, v1::Worker* out);
absl::StatusOr<WorkerInfo> Decode(const v1::Worker& in);

// A decoded line has no run.
void Encode(const RunLogPart& part, v1::LogsResponse* out);
absl::StatusOr<RunLogPart> Decode(const v1::LogsResponse& in);

void Encode(const RunWaits& waits, v1::WaitsResponse* out);
absl::StatusOr<RunWaits> Decode(const v1::WaitsResponse& in);

void Encode(const Job& job, v1::Job* out);
absl::StatusOr<Job> Decode(const v1::Job& in);

void Encode(const StepDone& step, v1::Step* out);
absl::StatusOr<RunEvent> Decode(const v1::RunEvent& in);

}  // namespace wire
}  // namespace weft

#endif  // WEFT_PROTO_WIRE_RUNS_CODEC_H_
