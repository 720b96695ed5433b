// Lists the files and folders that a run names, for a process that may open only some (base/run_files.h).
// Pure.
#ifndef WEFT_RUN_NAMED_PATHS_H_
#define WEFT_RUN_NAMED_PATHS_H_

#include <string>
#include <vector>

#include "run/run_spec.h"

namespace weft {

struct NamedPath {
  std::string key;  // place in the run file, as "data.text.path"
  std::string path;
};

// Returns every path that is read for the run: its data and held-out data, weights, exported model, plug-ins
// and the checkpoint that it goes on from.
std::vector<NamedPath> NamedPaths(const RunSpec& run);

}  // namespace weft

#endif  // WEFT_RUN_NAMED_PATHS_H_
