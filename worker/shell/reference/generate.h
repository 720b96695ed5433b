// Generates text, token by token, with a language model from a checkpoint: the continuation of a prompt.
//
// All layers run in one process, from a checkpoint of any cut (trained_model.h). The model reads the last
// tokens, as many as its context has, and each new token is chosen from the scores after them
// (token_sampler.h).
#ifndef WEFT_WORKER_SHELL_REFERENCE_GENERATE_H_
#define WEFT_WORKER_SHELL_REFERENCE_GENERATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "run/run_spec.h"
#include "worker/shell/reference/token_sampler.h"

namespace weft {

class DeviceBackend;

struct GenerateRequest {
  std::vector<int64_t> prompt;  // at least one token, each below the vocabulary
  int tokens = 200;             // number of tokens to make
  SamplingOptions sampling;
};

// Calls `on_token` with each new token; false ends it there (Cancelled). Where the run's data are bytes, only
// bytes are chosen. It computes in the run's precision, on the backend's device or, without one, on the CPU.
// Failure: InvalidArgument if the model writes no text (text_model.h) or the prompt is not one of its; of the
// checkpoint as checkpoint_reader.h says; FailedPrecondition where a score is not a finite number, or depends
// on later tokens; Internal for LibTorch.
absl::Status Generate(const RunSpec& run, const std::string& folder, const GenerateRequest& request,
                      const std::function<bool(int64_t token)>& on_token, DeviceBackend* backend = nullptr);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_REFERENCE_GENERATE_H_
