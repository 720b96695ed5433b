// Says what a run wants of LibTorch that a process has once for all of its runs: runs that want different
// things cannot share a process.
//
// A value; pure.
#ifndef WEFT_RUN_PROCESS_SETTINGS_H_
#define WEFT_RUN_PROCESS_SETTINGS_H_

#include <string>

#include "run/run_spec.h"

namespace weft {

struct ProcessSettings {
  bool deterministic = true;  // true: no kernel that may give other bits another time
  bool tf32 = false;          // true: a GPU multiplies float32 numbers in tf32
  bool one_dnn = false;       // true: oneDNN serves where it can
  friend bool operator==(const ProcessSettings&, const ProcessSettings&) = default;
};

ProcessSettings ProcessSettingsOf(const RunSpec& run);

// Returns "deterministic kernels, float32, oneDNN", or the like.
std::string ToText(const ProcessSettings& settings);

}  // namespace weft

#endif  // WEFT_RUN_PROCESS_SETTINGS_H_
