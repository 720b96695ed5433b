// Judges what was found of a machine and of its connection with a coordinator. Pure.
#ifndef WEFT_CLIENT_DOCTOR_FINDINGS_H_
#define WEFT_CLIENT_DOCTOR_FINDINGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/doctor/machine_facts.h"
#include "client/doctor/port_facts.h"
#include "client/doctor/program_facts.h"
#include "nlohmann/json_fwd.hpp"
#include "schedules/drawing/drawing.h"

namespace weft {

// kSlow: it works, and something else would be faster or safer. kBad: something does not work.
enum class Severity : uint8_t { kOk, kSlow, kBad };

struct Finding {
  Severity severity = Severity::kOk;
  std::string name, found;
  std::string needed;  // of what was found; "" where nothing is
  std::string advice;  // what to do, and why; "" for kOk
};

std::vector<Finding> JudgeMachine(const MachineFacts& facts);
std::vector<Finding> JudgePorts(const PortFacts& facts);
// Judges the daemon of that name beside a `weft` of that release.
Finding JudgeProgram(const std::string& name, const ProgramFacts& facts, const std::string& release);

// The certificates of `--tls`: those of the folder, or why they cannot be used.
struct CertificateFacts {
  std::string folder;  // "": without TLS
  std::string problem, identity;
  int64_t seconds_left = 0;  // INT64_MAX for authorities alone
};
Finding JudgeCertificates(const CertificateFacts& facts);

// The coordinator, asked once.
struct CoordinatorFacts {
  std::string address, problem;  // why it did not answer; "" if it did
  int workers = 0, free_workers = 0, silent_workers = 0;
  std::string own_release, release;  // of `weft`, and of the coordinator; "" where it does not tell it
  // The seconds by which its clock is before this machine's, and how far off that may be; none where it does
  // not tell its time.
  std::optional<double> clock_ahead;
  double clock_error = 0;
  // The number of workers by release, and by the libraries that they run with; "" for those that do not tell.
  std::map<std::string, int> releases, libraries;
};
std::vector<Finding> JudgeCoordinator(const CoordinatorFacts& facts);

// Returns a table: check, verdict, found, needed, what to do.
std::string FindingsText(const std::vector<Finding>& findings, const TextStyle& style = {});
nlohmann::ordered_json FindingsJson(const std::vector<Finding>& findings);
// Returns true if something does not work.
bool AnyBad(const std::vector<Finding>& findings);

}  // namespace weft

#endif  // WEFT_CLIENT_DOCTOR_FINDINGS_H_
