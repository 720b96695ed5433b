// Finds the trace of a run, and the run's specification: in its output folder, or at a coordinator, which has
// those of runs that go on too. `weft train` is the coordinator of its run.
#ifndef WEFT_CLIENT_COMMANDS_FOUND_TRACE_H_
#define WEFT_CLIENT_COMMANDS_FOUND_TRACE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/console/console.h"
#include "client/files/trace_file.h"
#include "client/runs/runs_client.h"
#include "run/run_spec.h"

namespace weft {

struct FoundTrace {
  std::string name;    // for messages: the file, or "run 3"
  std::string folder;  // in which the file lies; "" for a coordinator's run
  std::string text;    // the trace as it came from a coordinator; "" for a file
  absl::StatusOr<Trace> trace;
  absl::StatusOr<RunSpec> run;
  std::string summary = {};  // summary.json of a coordinator's run that has finished; "" for others
};

// Returns the number of a coordinator's run, if `place` is one and no file or folder.
std::optional<uint64_t> RunNumber(const std::string& place);

// Reads an output folder, or a file trace.json; asks the training that writes into the folder, if one does.
// Its `run` says why if the folder is not a run's, and ends with `otherwise`.
FoundTrace ReadFoundTrace(const std::string& place, absl::string_view otherwise);

// Fetches the trace of a coordinator's run. Failure as RunsClient::Trace; `run` and `trace` are ok in what it
// returns.
absl::StatusOr<FoundTrace> FetchTrace(RunsClient& client, uint64_t run);
// Says why there is none: a run that goes on has not ended a step yet, one that has ended has left no trace.
ExitCode FailToFetch(RunsClient& client, uint64_t run, const absl::Status& status);
// Says why a found trace cannot be shown: the training in its folder has ended no step yet, or the file is
// wrong.
ExitCode FailToRead(const absl::Status& status);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_FOUND_TRACE_H_
