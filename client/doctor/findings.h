// Judges what was found of a machine and of its connection with a coordinator. Pure.
#ifndef WEFT_CLIENT_DOCTOR_FINDINGS_H_
#define WEFT_CLIENT_DOCTOR_FINDINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/doctor/machine_facts.h"
#include "nlohmann/json_fwd.hpp"
#include "schedules/drawing/drawing.h"

namespace weft {

// kSlow: it works, and something else would be faster or safer. kBad: something does not work.
enum class Severity : uint8_t { kOk, kSlow, kBad };

struct Finding {
  Severity severity = Severity::kOk;
  std::string name, found;
  std::string advice;  // what to do, and why; "" for kOk
};

std::vector<Finding> JudgeMachine(const MachineFacts& facts);

// The certificates of `--tls`: those of the folder, or why they cannot be used.
struct CertificateFacts {
  std::string folder, problem, identity;
  int64_t seconds_left = 0;  // INT64_MAX for authorities alone
};
Finding JudgeCertificates(const CertificateFacts& facts);

// The coordinator, asked once.
struct CoordinatorFacts {
  std::string address, problem;  // why it did not answer; "" if it did
  int workers = 0, free_workers = 0, silent_workers = 0;
};
std::vector<Finding> JudgeCoordinator(const CoordinatorFacts& facts);

// Returns one line for each finding, and the advice of those that need any.
std::string FindingsText(const std::vector<Finding>& findings, const TextStyle& style = {});
nlohmann::ordered_json FindingsJson(const std::vector<Finding>& findings);
// Returns true if something does not work.
bool AnyBad(const std::vector<Finding>& findings);

}  // namespace weft

#endif  // WEFT_CLIENT_DOCTOR_FINDINGS_H_
