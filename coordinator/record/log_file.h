// Writes log.jsonl in a run's folder: the lines of its log, one JSON object a line (docs/guide/outputs.md).
//
// A file that has grown to `kMostBytes` becomes log.1.jsonl, in the place of the one before; so the newest
// lines are kept and the two are bounded. A run that goes on in its folder appends. The log never ends a
// training: what cannot be written is lost, and said once. One thread at a time.
#ifndef WEFT_COORDINATOR_RECORD_LOG_FILE_H_
#define WEFT_COORDINATOR_RECORD_LOG_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/session/run_log.h"

namespace weft {

// Returns a line as log.jsonl and `weft logs -o json` have it, without an end.
std::string RunLogJson(const RunLogLine& line);

class LogFile {
 public:
  static constexpr char kName[] = "log.jsonl", kFormer[] = "log.1.jsonl";
  static constexpr int64_t kMostBytes = int64_t{8} << 20;

  // Begins the file in the folder; with `goes_on` behind the lines that are there.
  LogFile(const std::string& folder, bool goes_on, int64_t most_bytes = kMostBytes);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Appends lines. Unavailable if they cannot be written, the first time of each such time.
  absl::Status Append(const std::vector<RunLogLine>& lines);

 private:
  absl::Status Write(absl::string_view text);

  const std::string folder_;
  const int64_t most_bytes_;
  int file_ = -1;
  int64_t bytes_ = 0;
  bool failing_ = false;
};

// Reads the lines of a folder, those of both files, oldest first. Damaged lines are left out. NotFound,
// with the file, if there is none.
absl::StatusOr<std::vector<RunLogLine>> ReadLogFile(const std::string& folder);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_LOG_FILE_H_
