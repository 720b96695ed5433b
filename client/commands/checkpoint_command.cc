#include "client/commands/checkpoint_command.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/run_files.h"
#include "client/files/run_file.h"
#include "nlohmann/json.hpp"
#include "schedules/byte_text.h"
#include "worker/shell/checkpoint/checkpoint_audit.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kIdShown = 8;  // digits of an id in a table

// Returns the folder that the argument means.
absl::StatusOr<std::string> FolderOf(const std::string& argument) {
  if (absl::Status readable = CheckReadable(argument); !readable.ok()) return readable;
  std::error_code error;
  if (fs::is_directory(argument, error)) return argument;
  if (!fs::exists(argument, error)) return absl::NotFoundError(absl::StrCat("no folder ", argument));
  const auto run = ReadRunFile(argument, RunFileData::kIgnored);
  if (!run.ok()) return run.status();
  const std::string folder = absl::StrCat("out/", run->name);
  if (fs::is_directory(folder, error)) return folder;
  return absl::NotFoundError(absl::StrCat("no folder ", folder, ", where ", argument,
                                          " puts its results unless --out names another"));
}

std::string NameOf(const CheckpointAudit& audit) {
  return (fs::path(audit.folder()) / "").lexically_normal().parent_path().filename().string();
}

std::string StateOf(const CheckpointAudit& audit) {
  if (audit.named.partial) return "partial";
  if (audit.unreadable()) return "unreadable";
  return audit.complete() ? "complete" : "damaged";
}

// Returns why it was saved: as the initial weights, on the way, or at the end of a run; "" if that is not
// known.
std::string KindOf(const CheckpointAudit& audit) {
  if (!audit.index.has_value()) return "";
  if (audit.index->version == 0) return "initial";
  return audit.index->identity.periodic ? "periodic" : "last";
}

std::string OrDash(std::string text) { return text.empty() ? "-" : std::move(text); }

std::string StepText(const CheckpointAudit& audit) {
  return audit.step().has_value() ? absl::StrCat(*audit.step()) : "-";
}

std::string Sealed(const CheckpointAudit& audit, const std::string& form, absl::TimeZone zone) {
  if (!audit.index.has_value() || audit.index->sealed_ms == 0) return "";
  return absl::FormatTime(form, absl::FromUnixMillis(audit.index->sealed_ms), zone);
}

std::string TableOf(const std::vector<CheckpointAudit>& audits) {
  std::vector<std::vector<std::string>> rows;
  for (const CheckpointAudit& audit : audits) {
    const bool known = audit.index.has_value();
    rows.push_back({NameOf(audit), StepText(audit), StateOf(audit), OrDash(KindOf(audit)),
                    FormatBytes(static_cast<double>(audit.bytes)),
                    OrDash(Sealed(audit, "%Y-%m-%d %H:%M:%S", absl::LocalTimeZone())),
                    OrDash(known ? audit.index->identity.run_id.substr(0, kIdShown) : ""),
                    OrDash(known ? audit.index->training.substr(0, kIdShown) : "")});
  }
  std::string text = FormatTable({"checkpoint", "step", "state", "kind", "size", "sealed", "run", "training"},
                                 rows, OutputStyle());
  for (const CheckpointAudit& audit : audits) {
    for (const CheckpointDamage& damage : audit.damages) absl::StrAppend(&text, damage.message, "\n");
  }
  return text;
}

OrderedJson JsonOf(const CheckpointAudit& audit) {
  OrderedJson json = {{"name", NameOf(audit)}, {"folder", audit.folder()},
                      {"step", nullptr},       {"state", StateOf(audit)},
                      {"bytes", audit.bytes},  {"resumable", audit.resumable()}};
  if (audit.step().has_value()) json["step"] = *audit.step();
  if (audit.index.has_value()) {
    const CheckpointIndex& index = *audit.index;
    json["kind"] = KindOf(audit);
    json["files"] = index.files.size();
    json["sealed"] = Sealed(audit, absl::RFC3339_full, absl::UTCTimeZone());
    json["name_of_run"] = index.run;
    json["run_id"] = index.identity.run_id;
    json["attempt"] = index.identity.attempt;
    json["training"] = index.training;
  }
  json["damages"] = OrderedJson::array();
  for (const CheckpointDamage& damage : audit.damages)
    json["damages"].push_back({{"file", damage.file}, {"message", damage.message}});
  return json;
}

OrderedJson JsonOf(const std::vector<CheckpointAudit>& audits) {
  OrderedJson json = OrderedJson::array();
  for (const CheckpointAudit& audit : audits) json.push_back(JsonOf(audit));
  return json;
}

// Returns the newest of them that a run can go on from; else one beside a checkpoint that was named alone.
std::string GoesOnFrom(const std::vector<CheckpointAudit>& audits) {
  for (auto audit = audits.rbegin(); audit != audits.rend(); ++audit) {
    if (audit->resumable()) return audit->folder();
  }
  if (audits.size() != 1) return "";
  const fs::path output = (fs::path(audits[0].folder()) / "").parent_path().parent_path();
  return FindNewestValid(output.empty() ? "." : output.string()).folder;
}

std::string Advice(const std::vector<CheckpointAudit>& audits, const std::string& good) {
  int damaged = 0, unreadable = 0;
  for (const CheckpointAudit& audit : audits) {
    unreadable += audit.unreadable() ? 1 : 0;
    damaged += !audit.damages.empty() && !audit.unreadable() ? 1 : 0;
  }
  const std::string of =
      absl::StrCat(" of ", audits.size(), audits.size() == 1 ? " checkpoint" : " checkpoints");
  std::string text;
  if (damaged > 0) text = absl::StrCat(damaged, of, audits.size() == 1 ? " is damaged" : " are damaged");
  if (unreadable > 0)
    absl::StrAppend(&text, damaged > 0 ? ", and " : "", unreadable, damaged > 0 ? "" : of, " cannot be read");
  if (!good.empty())
    return absl::StrCat(text, "; ", good, " is whole: weft train FILE --resume ", good, " goes on from it");
  absl::StrAppend(&text, ", and there is none to go on from: ");
  return absl::StrCat(
      text, unreadable > 0 ? "see to it that this user may read the files" : "copy it again, or train anew");
}

ExitCode List(const std::string& folder, bool json) {
  const std::vector<CheckpointAudit> audits = AuditCheckpoints(folder, AuditDepth::kHeaders);
  if (json) return PrintJson(JsonOf(audits));
  if (!audits.empty()) return PrintData(TableOf(audits));
  PrintMessage(absl::StrCat(folder, " holds no checkpoint"));
  return kExitOk;
}

ExitCode Verify(const std::string& folder, bool json) {
  std::vector<CheckpointAudit> audits = AuditCheckpoints(folder, AuditDepth::kData);
  const bool partial = !audits.empty() && std::all_of(audits.begin(), audits.end(),
                                                      [](const auto& audit) { return audit.named.partial; });
  if (audits.empty() || partial) {
    return Fail(kExitBadConfiguration,
                absl::StrCat(folder, " holds no complete checkpoint", partial ? ", only partial ones" : ""));
  }
  const bool damaged = std::any_of(audits.begin(), audits.end(),
                                   [](const CheckpointAudit& audit) { return !audit.damages.empty(); });
  const std::string good = damaged ? GoesOnFrom(audits) : "";
  ExitCode printed;
  if (json) {
    OrderedJson all = {{"checkpoints", JsonOf(audits)}, {"damaged", damaged}};
    if (damaged) all["go_on_from"] = good.empty() ? OrderedJson(nullptr) : OrderedJson(good);
    printed = PrintJson(all);
  } else {
    printed = PrintData(TableOf(audits));
  }
  if (printed != kExitOk || !damaged) return printed;
  return Fail(kExitBadConfiguration, Advice(audits, good));
}

}  // namespace

absl::StatusOr<std::string> CheckpointToRead(const std::string& folder) {
  const auto found = FindWholeCheckpoint(folder);
  if (!found.ok()) return found.status();
  for (const std::string& damage : found->left_out) PrintMessage(absl::StrCat("left out: ", damage));
  if (!found->left_out.empty()) PrintMessage(absl::StrCat("reading ", found->folder, ", which is whole"));
  return found->folder;
}

ExitCode RunCheckpoint(const CheckpointOptions& options) {
  const auto folder = FolderOf(options.folder);
  if (!folder.ok()) return Fail(kExitBadConfiguration, folder.status().message());
  return options.action == "ls" ? List(*folder, options.json) : Verify(*folder, options.json);
}

}  // namespace weft
