#include "coordinator/shell/user_tokens.h"

#include <errno.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/certificates/secret_text.h"

namespace weft {
namespace {

constexpr size_t kHashDigits = 64;

absl::Status CheckTokenRole(Role role) {
  if (role != Role::kWorker && role != Role::kCoordinator) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a ", RoleName(role), " has no token; give it a certificate"));
}

bool IsHash(absl::string_view text) {
  if (text.size() != kHashDigits) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c)) && (c < 'a' || c > 'f')) return false;
  }
  return true;
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text) {
  TokenTable table;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    absl::StatusOr<Identity> identity =
        words.size() == 3 && IsHash(words[2])
            ? MakeIdentity(words[0], words[1])
            : absl::InvalidArgumentError("a line has a role, a name, and 64 hexadecimal digits (0-9, a-f)");
    if (identity.ok()) {
      if (absl::Status role = CheckTokenRole(identity->role); !role.ok()) identity = role;
    }
    if (!identity.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", identity.status().message()));
    }
    table.lines_.push_back({*std::move(identity), std::string(words[2])});
  }
  return table;
}

absl::Status TokenTable::Put(const Identity& identity, absl::string_view token) {
  if (absl::Status role = CheckTokenRole(identity.role); !role.ok()) return role;
  std::erase_if(lines_, [&](const Line& line) { return line.identity == identity; });
  lines_.push_back({identity, Sha256Of(token)});
  return absl::OkStatus();
}

std::optional<Identity> TokenTable::Find(absl::string_view token) const {
  const std::string hash = Sha256Of(token);
  for (const Line& line : lines_) {
    if (EqualSecrets(line.hash, hash)) return line.identity;
  }
  return std::nullopt;
}

std::string TokenTable::Text() const {
  std::string text =
      "# role name SHA-256 of the token; weft certs token adds lines, and removing one locks out\n";
  for (const Line& line : lines_) {
    absl::StrAppend(&text, RoleName(line.identity.role), " ", line.identity.name, " ", line.hash, "\n");
  }
  return text;
}

absl::StatusOr<TokenTable> ReadTokens(const std::string& path) {
  std::ifstream file(path);
  if (!file.is_open() && errno == ENOENT) return TokenTable();
  std::stringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad()) {
    return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  absl::StatusOr<TokenTable> table = TokenTable::Parse(text.str());
  if (table.ok()) return table;
  return absl::InvalidArgumentError(absl::StrCat(path, ", ", table.status().message()));
}

absl::StatusOr<std::unique_ptr<UserTokens>> UserTokens::Open(
    const std::string& path, std::function<void(const absl::Status&)> complain) {
  struct stat there = {};
  if (stat(path.c_str(), &there) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no file of tokens ", path, ": ", std::strerror(errno), "; weft certs token makes one"));
  }
  absl::StatusOr<TokenTable> table = ReadTokens(path);
  if (!table.ok()) return table.status();
  return std::unique_ptr<UserTokens>(new UserTokens(path, std::move(complain), *std::move(table)));
}

UserTokens::UserTokens(std::string path, std::function<void(const absl::Status&)> complain, TokenTable table)
    : path_(std::move(path)), complain_(std::move(complain)), table_(std::move(table)) {}

std::optional<Identity> UserTokens::Find(absl::string_view token) {
  MutexLock lock(mu_);
  Refresh();
  return table_.Find(token);
}

void UserTokens::Refresh() {
  struct stat now = {};
  if (stat(path_.c_str(), &now) != 0) now = {};  // whoever removes the file locks all of them out
  if (SameFile(now, seen_)) return;
  seen_ = now;
  absl::StatusOr<TokenTable> table = ReadTokens(path_);
  if (table.ok()) {
    table_ = *std::move(table);
  } else if (complain_) {
    complain_(table.status());
  }
}

}  // namespace weft
