#include "client/commands/certs_command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/certificates/certificate_authority.h"
#include "base/certificates/secret_text.h"
#include "base/durable_file.h"
#include "coordinator/shell/user_tokens.h"
#include "nlohmann/json.hpp"
#include "proto/session/access.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr char kAuthorityFolder[] = "authority";
constexpr int kAuthorityDays = 3650;
// Clocks of machines differ; a certificate is valid a little before it was made.
constexpr absl::Duration kClockDifference = absl::Minutes(5);

Validity ValidFor(int days) {
  const absl::Time now = absl::Now();
  return {absl::ToUnixSeconds(now - kClockDifference), absl::ToUnixSeconds(now + absl::Hours(24 * days))};
}

absl::Status FileError(const std::string& what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

// Writes a new file, to the disk. Only its owner may read one that holds a key.
absl::Status WriteNewFile(const std::string& path, const std::string& text, bool secret) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, secret ? 0600 : 0644);
  if (fd < 0) return FileError("create", path);
  const bool written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  absl::Status status = written ? absl::OkStatus() : FileError("write", path);
  close(fd);
  return status;
}

using Files = std::map<std::string, std::string>;  // texts by name

// Makes the folder with the files, in place of the one that is there, at one instant.
absl::Status PutFolder(const std::string& folder, const Files& files) {
  const std::string fresh = absl::StrCat(folder, ".", getpid(), ".new");
  std::error_code error;
  fs::remove_all(fresh, error);
  if (mkdir(fresh.c_str(), 0755) != 0) return FileError("create", fresh);
  absl::Status written;
  for (const auto& [name, text] : files) {
    if (written.ok())
      written = WriteNewFile(absl::StrCat(fresh, "/", name), text, fs::path(name).extension() == ".key");
  }
  const bool there = fs::exists(folder, error);
  if (written.ok() &&
      renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), there ? RENAME_EXCHANGE : 0) != 0) {
    written = FileError("put in its place", folder);
  }
  fs::remove_all(fresh, error);  // the former folder, or one that could not be written
  return written;
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::string text;
  FILE* const file = fopen(path.c_str(), "re");
  if (file == nullptr) return FileError("read", path);
  char piece[4096];
  while (const size_t n = fread(piece, 1, sizeof(piece), file)) text.append(piece, n);
  fclose(file);
  return text;
}

// Returns the authority of the folder.
absl::StatusOr<KeyedCertificate> ReadAuthority(const std::string& folder) {
  const std::string place = absl::StrCat(folder, "/", kAuthorityFolder);
  absl::StatusOr<std::string> certificate = ReadText(place + "/ca.crt"), key = ReadText(place + "/ca.key");
  if (!certificate.ok()) return certificate.status();
  if (!key.ok()) return key.status();
  return KeyedCertificate{*std::move(certificate), *std::move(key)};
}

absl::StatusOr<KeyedCertificate> ReadOrMakeAuthority(const std::string& folder) {
  const std::string place = absl::StrCat(folder, "/", kAuthorityFolder);
  std::error_code error;
  if (fs::exists(place, error)) return ReadAuthority(folder);
  fs::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot create ", folder, ": ", error.message()));
  absl::StatusOr<KeyedCertificate> made = MakeAuthority("Weft authority", ValidFor(kAuthorityDays));
  if (!made.ok()) return made.status();
  const absl::Status written = PutFolder(place, {{"ca.crt", made->certificate}, {"ca.key", made->key}});
  if (!written.ok()) return written;
  return made;
}

// Returns the ends of connections at which programs with that role are. Workers serve each other's tensors,
// and their metrics. A coordinator also calls etcd.
CertificateEnds EndsOf(Role role) {
  const bool serves = role == Role::kCoordinator || role == Role::kWorker;
  return serves ? CertificateEnds::kBoth : CertificateEnds::kClient;
}

// Makes the folder of one identity. Prints where it is, or adds it to the array.
absl::Status PutIdentity(const CertsOptions& options, const KeyedCertificate& authority,
                         const Identity& identity, const std::vector<std::string>& hosts, OrderedJson* all) {
  const Validity validity = ValidFor(options.days);
  const auto made =
      IssueCertificate(authority, {identity.text(), identity.uri(), hosts, validity, EndsOf(identity.role)});
  // The user typed what is wrong with such a certificate.
  if (absl::IsInvalidArgument(made.status())) return absl::OutOfRangeError(made.status().message());
  if (!made.ok()) return made.status();
  const std::string folder = absl::StrCat(options.folder, "/", identity.name);
  absl::Status written = PutFolder(
      folder, {{"ca.crt", authority.certificate}, {"tls.crt", made->certificate}, {"tls.key", made->key}});
  if (!written.ok()) return written;
  const std::string end =
      absl::FormatTime("%Y-%m-%d", absl::FromUnixSeconds(validity.end), absl::UTCTimeZone());
  if (options.json) {
    all->push_back({{"folder", folder}, {"identity", identity.uri()}, {"valid_until", end}});
  } else {
    PrintData(absl::StrCat(folder, "  ", identity.uri(), "  valid until ", end, "\n"));
  }
  return absl::OkStatus();
}

absl::Status Init(const CertsOptions& options, OrderedJson* all) {
  const auto authority = ReadOrMakeAuthority(options.folder);
  if (!authority.ok()) return authority.status();
  for (const Role role : kRoles) {
    const std::string name(RoleName(role));
    // A client that compares hosts alone would take any certificate with the coordinator's host for it.
    const auto hosts = role == Role::kCoordinator ? options.hosts : std::vector<std::string>();
    if (absl::Status put = PutIdentity(options, *authority, {role, name}, hosts, all); !put.ok()) return put;
  }
  return absl::OkStatus();
}

absl::Status Add(const CertsOptions& options, OrderedJson* all) {
  const auto identity = MakeIdentity(options.role, options.name);
  if (!identity.ok()) return absl::OutOfRangeError(identity.status().message());
  if (identity->name == kAuthorityFolder || identity->name.front() == '.') {
    return absl::OutOfRangeError(absl::StrCat("\"", identity->name, "\" cannot be a name here"));
  }
  const auto authority = ReadAuthority(options.folder);
  if (!authority.ok()) return authority.status();
  return PutIdentity(options, *authority, *identity, options.hosts, all);
}

// Makes a token and prints it. The file gets its hash alone.
absl::Status AddToken(const CertsOptions& options) {
  const auto identity = MakeIdentity(options.role, options.name);
  if (!identity.ok()) return absl::OutOfRangeError(identity.status().message());
  const std::string path = absl::StrCat(options.folder, "/tokens");
  absl::StatusOr<TokenTable> table = ReadTokens(path);
  if (!table.ok()) return table.status();
  const std::string token = RandomSecret();
  if (absl::Status put = table->Put(*identity, token); !put.ok()) return put;
  if (absl::Status written = WriteWholeFile(path, table->Text()); !written.ok()) return written;
  if (options.json) {
    PrintJson({{"identity", identity->uri()}, {"token", token}});
  } else {
    PrintData(absl::StrCat(token, "\n"));
  }
  return absl::OkStatus();
}

}  // namespace

ExitCode RunCerts(const CertsOptions& options) {
  // Before anything is written.
  if (absl::Status hosts = CheckHosts(options.hosts); !hosts.ok()) return Fail(kExitUsage, hosts.message());
  OrderedJson all = OrderedJson::array();  // folders that were made
  const absl::Status status = options.action == "init"  ? Init(options, &all)
                              : options.action == "add" ? Add(options, &all)
                                                        : AddToken(options);
  if (status.ok() && options.json && !all.empty()) return PrintJson(all);
  if (status.ok()) return kExitOk;
  if (absl::IsOutOfRange(status)) return Fail(kExitUsage, status.message());
  return Fail(absl::IsUnavailable(status) ? kExitFailed : kExitBadConfiguration, status.message());
}

}  // namespace weft
