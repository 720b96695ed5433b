#include "proto/session/access.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace weft {
namespace {

constexpr size_t kMaxIdentityName = 63;
constexpr absl::string_view kIdentityScheme = "weft://";

std::string RoleNames(const std::vector<Role>& roles) {
  return absl::StrJoin(roles, ", ",
                       [](std::string* out, Role role) { absl::StrAppend(out, RoleName(role)); });
}

bool IsIdentityName(absl::string_view name) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' || c == '@';
  };
  return !name.empty() && name.size() <= kMaxIdentityName && std::all_of(name.begin(), name.end(), allowed);
}

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kAdmin:
      return "admin";
    case Role::kSubmitter:
      return "submitter";
    case Role::kViewer:
      return "viewer";
    case Role::kWorker:
      return "worker";
    case Role::kMetrics:
      return "metrics";
    case Role::kCoordinator:
      return "coordinator";
  }
  return "";
}

std::optional<Role> RoleNamed(absl::string_view name) {
  for (const Role role : kRoles) {
    if (RoleName(role) == name) return role;
  }
  return std::nullopt;
}

std::string Identity::text() const { return absl::StrCat(RoleName(role), " '", name, "'"); }
std::string Identity::uri() const { return absl::StrCat(kIdentityScheme, RoleName(role), "/", name); }

absl::StatusOr<Identity> MakeIdentity(absl::string_view role, absl::string_view name) {
  const std::optional<Role> known = RoleNamed(role);
  if (!known.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no role \"", role.substr(0, kMaxIdentityName),
                                                   "\"; roles are ",
                                                   RoleNames({std::begin(kRoles), std::end(kRoles)})));
  }
  if (!IsIdentityName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name.substr(0, kMaxIdentityName),
                     "\" is not a name; write 1 to 63 letters, digits, '-', '_', '.' or '@'"));
  }
  return Identity{*known, std::string(name)};
}

absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& uris) {
  std::optional<Identity> found;
  for (absl::string_view uri : uris) {
    if (!absl::ConsumePrefix(&uri, kIdentityScheme)) continue;
    const size_t slash = uri.find('/');
    absl::StatusOr<Identity> identity =
        slash == absl::string_view::npos
            ? absl::StatusOr<Identity>(absl::InvalidArgumentError("it has no name"))
            : MakeIdentity(uri.substr(0, slash), uri.substr(slash + 1));
    if (!identity.ok()) {
      return absl::UnauthenticatedError(
          absl::StrCat("the certificate's weft:// URI is wrong: ", identity.status().message()));
    }
    if (found.has_value()) return absl::UnauthenticatedError("the certificate has two identities of Weft");
    found = *std::move(identity);
  }
  if (found.has_value()) return *std::move(found);
  return absl::UnauthenticatedError(
      "the certificate has no identity of Weft: none of its alternative names is a URI weft://ROLE/NAME");
}

const std::vector<MethodAccess>& AccessTable() {
  using enum Role;
  static const auto& everyone = *new std::vector<Role>(std::begin(kRoles), std::end(kRoles));
  static const auto& table = *new std::vector<MethodAccess>{
      {"/grpc.health.v1.Health/Check", everyone},
      {"/grpc.health.v1.Health/Watch", everyone},
      {"/weft.v1.Coordination/Session", {kWorker}},
      {"/weft.v1.Runs/Submit", {kAdmin, kSubmitter}},
      {"/weft.v1.Runs/Cancel", {kAdmin, kSubmitter}},
      {"/weft.v1.Runs/Get", {kAdmin, kSubmitter, kViewer}},
      {"/weft.v1.Runs/List", {kAdmin, kSubmitter, kViewer}},
      {"/weft.v1.Runs/Watch", {kAdmin, kSubmitter, kViewer}},
      {"/weft.v1.Runs/Logs", {kAdmin, kSubmitter, kViewer}},
      {"/weft.v1.Runs/Trace", {kAdmin, kSubmitter, kViewer}},
      {"/weft.v1.Runs/Waits", {kAdmin, kSubmitter, kViewer}},
      {"/weft.v1.Runs/ListWorkers", {kAdmin, kSubmitter, kViewer}},
      {"/weft.v1.Runs/Move", {kAdmin}},
      {"/weft.v1.Runs/Drain", {kAdmin}},
  };
  return table;
}

bool MayRead(const std::vector<std::string>& uris, absl::string_view page) {
  const absl::StatusOr<Identity> reader = IdentityOf(uris);
  if (!reader.ok()) return false;
  if (page == "/metrics" || page == "/healthz")
    return reader->role == Role::kMetrics || reader->role == Role::kAdmin;
  return CheckAccess(*reader, "/weft.v1.Runs/Get").ok();
}

absl::Status CheckAccess(const Identity& identity, absl::string_view path) {
  for (const MethodAccess& method : AccessTable()) {
    if (method.path != path) continue;
    if (std::find(method.roles.begin(), method.roles.end(), identity.role) != method.roles.end()) {
      return absl::OkStatus();
    }
    return absl::PermissionDeniedError(absl::StrCat(identity.text(), " may not call ", path,
                                                    "; the roles that may: ", RoleNames(method.roles)));
  }
  return absl::PermissionDeniedError(absl::StrCat(identity.text(), " may not call ", path.substr(0, 200)));
}

}  // namespace weft
