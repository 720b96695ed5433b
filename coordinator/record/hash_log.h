// Writes hashes.jsonl: a line for the run, then one for each job that is done (docs/guide/outputs.md).
//
// A run that goes on in the folder of the run before appends a line of its own, and its jobs: readers take
// the last line of a job. Lines that cannot be written, as on a full disk, wait in memory, up to a bound;
// those beyond it are lost, and the log never ends a training. One thread at a time.
#ifndef WEFT_COORDINATOR_RECORD_HASH_LOG_H_
#define WEFT_COORDINATOR_RECORD_HASH_LOG_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/session/job_hashes.h"
#include "run/run_spec.h"

namespace weft {

class HashLog {
 public:
  // Begins the file in `folder`, or goes on with it if the run goes on from a checkpoint. `same_run`: or if
  // it is of this run, whose coordinator was started again. Does nothing for a run that records no hashes.
  HashLog(const std::string& folder, const RunSpec& run, bool same_run = false);
  ~HashLog();
  HashLog(const HashLog&) = delete;
  HashLog& operator=(const HashLog&) = delete;

  // Appends jobs. Unavailable if lines cannot be written, the first time of each such time.
  absl::Status Append(const std::vector<JobHashes>& jobs);
  // Appends a line of HashLine likewise.
  absl::Status Append(absl::string_view line);

 private:
  absl::Status Write();

  const std::string path_;
  int file_ = -1;
  std::string pending_;
  bool failing_ = false;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_HASH_LOG_H_
