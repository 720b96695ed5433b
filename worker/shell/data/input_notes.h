// Notes in a run's output folder what the files are that the run reads, so that none of its attempts goes on
// with others that have been given their names: its steps would not be those of an undisturbed run.
//
// The file `inputs.jsonl` there has a line for each file that some process of the run could open: its length,
// and a hash of its bytes, of a long one of a sample. Each process of each attempt compares what it finds
// with the first line of the run about that file, or adds one. So processes of one attempt that see different
// files under one name are found, too. Times do not count, as another machine's copy has another one.
//
// Threads: any. Failure: FailedPrecondition that names the file, what differs, and what to do; Unavailable if
// the notes cannot be written.
#ifndef WEFT_WORKER_SHELL_DATA_INPUT_NOTES_H_
#define WEFT_WORKER_SHELL_DATA_INPUT_NOTES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "run/run_spec.h"

namespace weft {

// Returns the files that an attempt reads: data, held-out data, and weights, where it begins with them. A
// checkpoint from which the run goes on is not among them, nor are plug-ins, whose hashes the run has.
std::vector<std::string> InputFiles(const RunSpec& run);

// Compares the files with the notes in the folder of the run, and adds those that are missing. Leaves out
// files that cannot be opened here: who reads them says so.
absl::Status CheckInputs(const std::string& output, const std::string& run_id,
                         const std::vector<std::string>& files);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_INPUT_NOTES_H_
