#include "client/commands/doctor_command.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/certificates/certificate_folder.h"
#include "base/net/address.h"
#include "base/release.h"
#include "client/doctor/findings.h"
#include "client/doctor/machine_facts.h"
#include "client/doctor/port_facts.h"
#include "client/doctor/program_facts.h"
#include "nlohmann/json.hpp"
#include "proto/session/access.h"

namespace weft {
namespace {

CertificateFacts FactsOfCertificates(const SecurityFlags& security) {
  CertificateFacts facts;
  facts.folder = security.tls;
  if (facts.folder.empty()) return facts;
  const auto own = security.token.empty() ? OwnCertificate::kRequired : OwnCertificate::kOptional;
  const absl::StatusOr<CertificateFolder> folder = ReadCertificateFolder(security.tls, own);
  if (!folder.ok()) {
    facts.problem = std::string(folder.status().message());
    return facts;
  }
  const absl::StatusOr<Identity> identity = IdentityOf(folder->uris);
  facts.identity = folder->identity.empty() ? "authorities alone, for a token"
                   : identity.ok()          ? identity->text()
                                            : std::string(identity.status().message());
  facts.seconds_left =
      folder->identity.empty() ? INT64_MAX : folder->expires - absl::ToUnixSeconds(absl::Now());
  return facts;
}

CoordinatorFacts FactsOfCoordinator(const CoordinatorOptions& options) {
  CoordinatorFacts facts;
  facts.address = options.address;
  auto client = ConnectTo(options);
  if (!client.ok()) {
    facts.problem = std::string(client.status().message());
    return facts;
  }
  absl::StatusOr<FleetInfo> fleet = (*client)->AskFleet();
  const absl::Time asked = absl::Now();
  if (fleet.ok()) fleet = (*client)->AskFleet();  // over the connection that is there now, for the clocks
  const absl::Time answered = absl::Now();
  if (!fleet.ok()) {
    facts.problem = std::string(fleet.status().message());
    return facts;
  }
  facts.own_release = std::string(Release());
  facts.release = fleet->release;
  if (fleet->unix_ns != 0) {
    const absl::Duration half = (answered - asked) / 2;
    facts.clock_ahead = absl::ToDoubleSeconds(absl::FromUnixNanos(fleet->unix_ns) - (asked + half));
    facts.clock_error = absl::ToDoubleSeconds(half);
  }
  for (const WorkerInfo& worker : fleet->workers) {
    ++facts.workers;
    if (worker.state == "free") ++facts.free_workers;
    if (worker.state == "silent" || worker.state == "broken") ++facts.silent_workers;
    ++facts.releases[worker.release];
    ++facts.libraries[worker.libraries];
  }
  return facts;
}

// Returns the value of the program's setting; nothing for a program that told no settings.
std::optional<std::string> SettingOf(const ProgramFacts& program, const std::string& name) {
  const auto setting = program.settings.find(name);
  if (setting == program.settings.end()) return std::nullopt;
  return setting->second;
}

// Returns the first HOST:PORT at which a coordinator of this machine would listen; "" for none.
std::string ListenAddress(const ProgramFacts& coordinator) {
  const std::string listen = SettingOf(coordinator, "listen").value_or("");
  // A default has commas, and a list that was given has blanks.
  for (const absl::string_view one : absl::StrSplit(listen, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    if (!absl::StartsWith(one, "unix:")) return std::string(one);
  }
  return "";
}

// Returns true if a coordinator that is reached at `asked`, one or several, is the one of `listen` here.
bool IsSame(const std::string& asked, const std::string& listen) {
  const auto here = ParseAddress(listen);
  const auto there = ParseAddresses(asked);
  return here.ok() && there.ok() &&
         std::any_of(there->begin(), there->end(), [&here](const Address& address) {
           return !address.is_unix && address.port == here->port &&
                  (address.host == here->host || address.loopback());
         });
}

}  // namespace

ExitCode RunDoctor(const DoctorOptions& options) {
  std::vector<Finding> findings = JudgeMachine(ReadMachineFacts());
  const ProgramFacts worker = ReadProgramFacts("weft-worker");
  const ProgramFacts coordinator = ReadProgramFacts("weft-coordinator");
  PortFacts ports = ReadPortFacts(ListenAddress(coordinator), SettingOf(worker, "data-ports"));
  std::vector<Finding> connection;
  if (!options.machine_only) {
    connection.push_back(JudgeCertificates(FactsOfCertificates(options.coordinator.security)));
    const CoordinatorFacts asked = FactsOfCoordinator(options.coordinator);
    ports.is_asked = asked.problem.empty() && IsSame(options.coordinator.address, ports.listen);
    for (Finding& finding : JudgeCoordinator(asked)) connection.push_back(std::move(finding));
  }
  const std::string release(Release());
  findings.push_back(JudgeProgram("weft-worker", worker, release));
  findings.push_back(JudgeProgram("weft-coordinator", coordinator, release));
  for (Finding& finding : JudgePorts(ports)) findings.push_back(std::move(finding));
  for (Finding& finding : connection) findings.push_back(std::move(finding));
  const ExitCode printed = options.coordinator.json ? PrintJson(FindingsJson(findings))
                                                    : PrintData(FindingsText(findings, OutputStyle()));
  if (printed != kExitOk) return printed;
  return AnyBad(findings) ? kExitFailed : kExitOk;
}

}  // namespace weft
