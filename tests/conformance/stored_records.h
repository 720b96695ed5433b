// Records for the tests of stores.
#ifndef WEFT_TESTS_CONFORMANCE_STORED_RECORDS_H_
#define WEFT_TESTS_CONFORMANCE_STORED_RECORDS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/records.h"
#include "coordinator/store/stored_codec.h"

namespace weft {

inline constexpr int64_t kUnix =
    1'700'000'000'000'000'000;  // the wall clock's time at the monotonic clock's 0

// Everything that a store returns, as text: equal texts mean equal states.
inline std::string TextOf(const StoredState& state) {
  std::string text = absl::StrCat("epoch ", state.epoch, ", last run ", state.last_run, "\n");
  for (const auto& [id, run] : state.runs) {
    absl::StrAppend(&text, id, run.written ? " written " : " ", EncodeStored(run.submission), "|",
                    EncodeStored(run.attempt), "|", EncodeStored(run.figures, kUnix), "|");
    for (const StepDone& step : run.steps) absl::StrAppend(&text, EncodeStored(step, kUnix), "|");
    for (const Validation& validation : run.validations)
      absl::StrAppend(&text, EncodeStored(validation), "|");
    absl::StrAppend(&text, "\n");
  }
  return text;
}

inline RunFigures FiguresOf(uint64_t run, RunState state, int32_t checkpoint = -1,
                            const std::string& reason = "") {
  RunFigures figures;
  figures.info.id = run;
  figures.info.name = absl::StrCat("run-", run);
  figures.info.state = state;
  figures.info.steps = 100;
  figures.info.ranks = figures.info.processes = 2;
  figures.info.checkpoint_step = checkpoint;
  if (checkpoint >= 0) figures.checkpoints = {0, checkpoint};
  figures.info.reason = reason;
  figures.info.submitted_ns = 5;
  return figures;
}

inline Records Submitted(uint64_t run, const std::string& request = "") {
  Records records;
  records.submissions.push_back({run,
                                 request,
                                 absl::StrCat("{\"name\": \"run-", run, "\"}"),
                                 2,
                                 "/asked",
                                 {"/out/run", "/out/run/live", "abc"},
                                 "tiny.yaml",
                                 "identity"});
  records.figures.push_back(FiguresOf(run, RunState::kSubmitted));
  return records;
}

inline AttemptRecord AttemptOf(uint64_t run, uint64_t epoch) {
  AttemptRecord attempt;
  attempt.run = run;
  attempt.epoch = epoch;
  attempt.first_token = 12;
  attempt.first_step = 250;
  attempt.reduction = ReductionMode::kFast;
  attempt.members = {{3, "w0", "process 3 (w0)"}, {4, "w1", "process 4 (w1)"}};
  attempt.former.emplace_back().wall_seconds = 1.5;
  attempt.schedule = R"({"ddp": {"ranks": "2"}})";
  attempt.left_links = R"({"slow": []})";
  attempt.ordered = true;
  return attempt;
}

inline Records Stepped(uint64_t run, int32_t step) {
  Records records;
  records.steps.push_back({run, step, 0.1 * step, true, 1000 + step, 2.5});
  return records;
}

inline Records Ended(uint64_t run) {
  Records records;
  records.figures.push_back(FiguresOf(run, RunState::kFinished));
  return records;
}

}  // namespace weft

#endif  // WEFT_TESTS_CONFORMANCE_STORED_RECORDS_H_
