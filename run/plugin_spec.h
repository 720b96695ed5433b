// Reads the `plugins` of a run file: libraries of operations of the user's own, which an exported model
// calls.
//
// A library is code that runs in the worker. So a run names it by path and hash, and a worker loads only what
// its own configuration allows (worker/shell/torch/plugins.h). Pure. Failure: as file_section.h.
#ifndef WEFT_RUN_PLUGIN_SPEC_H_
#define WEFT_RUN_PLUGIN_SPEC_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "run/file_section.h"
#include "run/run_spec.h"

namespace weft {

// Returns true for 64 hexadecimal digits, as sha256sum prints them.
bool IsSha256(absl::string_view text);

// Reads `plugins: [{library: ops/librope.so, sha256: 9f86..}]` into the run's model, which must be an
// exported one, and checks that a model with operations outside of ATen has one. The first error stays in
// `status`.
void ReadPlugins(const FileSection& file, RunSpec& spec, absl::Status& status);

nlohmann::json ToJson(const std::vector<PluginSpec>& plugins);

}  // namespace weft

#endif  // WEFT_RUN_PLUGIN_SPEC_H_
