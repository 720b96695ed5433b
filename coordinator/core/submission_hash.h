// Hashes what a run is submitted with, to tell a repeated request from another one under the same name. Pure.
#ifndef WEFT_COORDINATOR_CORE_SUBMISSION_HASH_H_
#define WEFT_COORDINATOR_CORE_SUBMISSION_HASH_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/fnv1a.h"

namespace weft {

// Returns the hash of the specification, the processes and the output folder of a submission.
inline uint64_t BodyHash(absl::string_view spec, int32_t processes, absl::string_view output) {
  return Fnv1a()
      .Add(spec)
      .Add(uint64_t{spec.size()})
      .Add(output)
      .Add(uint64_t{output.size()})
      .Add(static_cast<uint64_t>(processes))
      .hash();
}

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_SUBMISSION_HASH_H_
