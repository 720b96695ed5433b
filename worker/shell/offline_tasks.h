// Does what weft-worker does without a coordinator: checks an exported model, trains a specification as one
// plain loop, evaluates a checkpoint, generates text with one.
//
// Each task reads a run's specification (JSON), prints its results to stdout, one JSON object a line, and
// returns the process's exit code; messages go to stderr. A reader that is gone ends it early. `backend` is
// the device that computes, null for the CPU.
#ifndef WEFT_WORKER_SHELL_OFFLINE_TASKS_H_
#define WEFT_WORKER_SHELL_OFFLINE_TASKS_H_

#include <cstdint>
#include <string>

#include "worker/shell/compute/device_backend.h"

namespace weft {

// Checks that this LibTorch takes the graphs of an exported model: prints {"problem": ".."} if it does not,
// else nothing.
int CheckModel(const std::string& specification);

// Trains. Where there is a folder for checkpoints, SIGINT, SIGTERM and SIGHUP end it after the step that it
// is in, with a checkpoint.
int TrainReference(const std::string& specification, const std::string& out, DeviceBackend* backend);

// Evaluates the checkpoint on the first so many samples; 0 for all. Each line is the result so far; the last
// has all samples.
int EvaluateCheckpoint(const std::string& specification, const std::string& checkpoint, int64_t samples,
                       DeviceBackend* backend);

// Generates text. `request_json`: {"prompt": [82, 79], "tokens": 200, "temperature": 0.8, "top_k": 0,
// "seed": 1}. Each line is one new token.
int GenerateText(const std::string& specification, const std::string& checkpoint,
                 const std::string& request_json, DeviceBackend* backend);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_OFFLINE_TASKS_H_
