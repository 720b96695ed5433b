// Says who may call what: the one table from method to role. A method that is not in the table is refused to
// everyone.
//
// An identity is a role and a name. A certificate carries it as the URI weft://ROLE/NAME among its
// alternative names, a token's line in the coordinator's file as two words. Pure.
#ifndef WEFT_PROTO_SESSION_ACCESS_H_
#define WEFT_PROTO_SESSION_ACCESS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

enum class Role { kAdmin, kSubmitter, kViewer, kWorker, kMetrics, kCoordinator };
inline constexpr Role kRoles[] = {Role::kAdmin,  Role::kSubmitter, Role::kViewer,
                                  Role::kWorker, Role::kMetrics,   Role::kCoordinator};

absl::string_view RoleName(Role role);
std::optional<Role> RoleNamed(absl::string_view name);

struct Identity {
  Role role = Role::kViewer;
  std::string name;  // letters, digits, '-', '_', '.' and '@', 1 to 63

  bool operator==(const Identity&) const = default;
  // Returns "viewer 'alice'".
  std::string text() const;
  std::string uri() const;
};

// Makes an identity of its two parts. InvalidArgument with the roles, or with the form of names.
absl::StatusOr<Identity> MakeIdentity(absl::string_view role, absl::string_view name);

// Returns the identity in a certificate's URIs. Unauthenticated if none of them, or more than one, is of
// Weft's form.
absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& uris);

struct MethodAccess {
  absl::string_view path;   // as /weft.v1.Runs/Submit
  std::vector<Role> roles;  // those that may call it
};
const std::vector<MethodAccess>& AccessTable();

// Returns true if the identity in a certificate's URIs may read that page of a process from another machine:
// metrics and health, or those that show runs.
bool MayRead(const std::vector<std::string>& uris, absl::string_view page);

// Returns PermissionDenied, with the roles that may, for an identity whose role may not call the method.
absl::Status CheckAccess(const Identity& identity, absl::string_view path);

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_ACCESS_H_
