// Puts messages and effects into words for golden transcripts: one line each, the name and the fields that
// matter.
//
// Pure. A job is "forward t0 s1 b2": step, stage, micro-batch, or, of a reduce or update, the member of the
// stage behind the first, as in "update t0 s1 m1". Jobs of one step and kind in a row are put together, as in
// "t0: forward s0 b0 b1, update s0".
#ifndef WEFT_TESTS_GOLDEN_TRANSCRIPT_WORDS_H_
#define WEFT_TESTS_GOLDEN_TRANSCRIPT_WORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/session/messages.h"
#include "proto/session/run_info.h"
#include "worker/core/worker_core.h"

namespace weft {

std::string JobWords(const Job& job);
std::string JobsWords(const std::vector<Job>& jobs);
absl::StatusOr<Job> ParseJobWords(absl::string_view words);

std::string TokenWords(const Token& token);
absl::StatusOr<Token> ParseTokenWords(absl::string_view words);

// Returns "activation t0 s1 b2 from rank 1 for rank 2".
std::string TensorWords(const TensorKey& key);
// Returns "1.5s".
std::string SecondsWords(int64_t ns);

std::string MessageName(const FromWorker& message);
std::string MessageName(const FromCoordinator& message);
std::string MessageWords(const FromWorker& message);
std::string MessageWords(const FromCoordinator& message);

// Returns what the worker does, as in "starts ..", without messages.
std::string EffectWords(const WorkerEffect& effect);

std::string RunWords(const RunInfo& info);

}  // namespace weft

#endif  // WEFT_TESTS_GOLDEN_TRANSCRIPT_WORDS_H_
