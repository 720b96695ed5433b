#include "client/commands/doctor_command.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/certificates/certificate_folder.h"
#include "client/doctor/findings.h"
#include "client/doctor/machine_facts.h"
#include "nlohmann/json.hpp"
#include "proto/session/access.h"

namespace weft {
namespace {

CertificateFacts FactsOfCertificates(const SecurityFlags& security) {
  CertificateFacts facts;
  facts.folder = security.tls;
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
  const auto workers = (*client)->ListWorkers();
  if (!workers.ok()) {
    facts.problem = std::string(workers.status().message());
    return facts;
  }
  for (const WorkerInfo& worker : *workers) {
    ++facts.workers;
    if (worker.state == "free") ++facts.free_workers;
    if (worker.state == "silent" || worker.state == "broken") ++facts.silent_workers;
  }
  return facts;
}

}  // namespace

ExitCode RunDoctor(const DoctorOptions& options) {
  std::vector<Finding> findings = JudgeMachine(ReadMachineFacts());
  if (!options.machine_only) {
    if (!options.coordinator.security.tls.empty())
      findings.push_back(JudgeCertificates(FactsOfCertificates(options.coordinator.security)));
    for (Finding& finding : JudgeCoordinator(FactsOfCoordinator(options.coordinator)))
      findings.push_back(std::move(finding));
  }
  const ExitCode printed = PrintData(options.coordinator.json ? FindingsJson(findings).dump(2) + "\n"
                                                              : FindingsText(findings, OutputStyle()));
  if (printed != kExitOk) return printed;
  return AnyBad(findings) ? kExitFailed : kExitOk;
}

}  // namespace weft
