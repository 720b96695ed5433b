// Carries out the commands of a golden transcript (docs/design/tests.md lists them). Pure.
#ifndef WEFT_TESTS_GOLDEN_TRANSCRIPT_DRIVER_H_
#define WEFT_TESTS_GOLDEN_TRANSCRIPT_DRIVER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/golden/transcript_cores.h"
#include "tests/golden/transcript_file.h"
#include "tests/golden/transcript_page.h"

namespace weft {

class TranscriptDriver {
 public:
  TranscriptDriver() : cores_(&page_) {}

  // Returns what the command leads to, as far as it is shown, and the error if there is one.
  std::string Do(const TranscriptCommand& command);

 private:
  using Command = TranscriptCommand;
  absl::Status Carry(const Command& c);
  absl::Status Show(const Command& c);
  absl::Status Options(const Command& c);
  absl::Status Submit(const Command& c);
  absl::Status Cancel(const Command& c);
  absl::Status Move(const Command& c);
  absl::Status Hello(const Command& c);
  absl::Status Send(const Command& c);
  absl::Status Packet(const Command& c);
  absl::Status Run(const Command& c);
  absl::Status End(const Command& c);
  absl::Status Lose(const Command& c);
  absl::Status Tick(const Command& c);
  absl::StatusOr<FromWorker> Message(const Command& c, const TranscriptCores::Worker& w);
  absl::StatusOr<TranscriptCores::Worker*> WorkerOf(const Command& c);

  TranscriptPage page_;
  TranscriptCores cores_;
  uint64_t replies_ = 0;
};

}  // namespace weft

#endif  // WEFT_TESTS_GOLDEN_TRANSCRIPT_DRIVER_H_
