#include "coordinator/store/store.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace weft {

void Apply(const Records& records, StoredState* state) {
  state->epoch = std::max(state->epoch, records.epoch);
  for (const Submission& submission : records.submissions) {
    state->runs[submission.run].submission = submission;
    state->last_run = std::max(state->last_run, submission.run);
  }
  for (const AttemptRecord& attempt : records.attempts) {
    const auto run = state->runs.find(attempt.run);
    if (run != state->runs.end()) run->second.attempt = attempt;
  }
  for (const RunFigures& figures : records.figures) {
    const auto run = state->runs.find(figures.info.id);
    if (run != state->runs.end()) run->second.figures = figures;
  }
  for (const StepDone& step : records.steps) {
    const auto run = state->runs.find(step.run);
    if (run != state->runs.end() && !run->second.written) run->second.steps.push_back(step);
  }
  for (const Validation& validation : records.validations) {
    const auto run = state->runs.find(validation.run);
    if (run != state->runs.end() && !run->second.written) run->second.validations.push_back(validation);
  }
  for (const uint64_t id : records.written) {
    const auto run = state->runs.find(id);
    if (run == state->runs.end()) continue;
    run->second.written = true;
    run->second.steps.clear();
    run->second.validations.clear();
  }
  for (const uint64_t id : records.forgotten) state->runs.erase(id);
}

absl::Status UnknownFormat(absl::string_view store, absl::string_view format) {
  int number = 0;
  if (!absl::SimpleAtoi(format, &number) || number < kOldestStoreVersion)
    return absl::DataLossError(absl::StrCat(store, " is damaged: it has the format ", format));
  return absl::FailedPreconditionError(absl::StrCat(
      store, " has the format ", format, ", and this release knows the formats ", kOldestStoreVersion, " to ",
      kStoreVersion,
      "; a newer release has written it: start that one, or restore the backup from before the upgrade"));
}

absl::Status CheckStored(const StoredState& state) {
  for (const auto& [id, run] : state.runs) {
    const auto damaged = [id = id](const auto&... what) {
      return absl::DataLossError(absl::StrCat("run ", id, " is damaged: ", what...));
    };
    if (id > state.last_run) return damaged("its number was never given");
    if (run.submission.run != id || run.figures.info.id != id) return damaged("a part of it is missing");
    if (IsFinal(run.figures.info.state) && run.written) continue;
    if (run.written) return damaged("its output is complete, and it has not ended");
    const int32_t first = run.steps.empty() ? 0 : run.steps.front().step;
    for (size_t i = 0; i < run.steps.size(); ++i) {
      const int32_t step = first + static_cast<int32_t>(i);
      if (run.steps[i].step != step) return damaged("its step ", step, " is missing");
    }
    const int32_t end = run.steps.empty() ? 0 : run.steps.back().step + 1;
    const int32_t reached = run.figures.info.checkpoint_step;
    if (reached > end)
      return damaged("it has a checkpoint of step ", reached, ", and the steps before ", end, " only");
  }
  return absl::OkStatus();
}

}  // namespace weft
