// Knows users by tokens, where they have no certificates: a file with a line for each token.
//
//   # comment
//   submitter alice 5e88..    role, name, and the SHA-256 of the token in hexadecimal digits
//
// The file holds no token, so a reader of it cannot pose as a user. A token has 256 random bits, so its hash
// needs no salt. Workers and coordinators have certificates always.
//
// Threads: TokenTable is a value; UserTokens may be called from any thread. Failure: InvalidArgument with the
// number of the line, or Unavailable for a file that cannot be read.
#ifndef WEFT_COORDINATOR_SHELL_USER_TOKENS_H_
#define WEFT_COORDINATOR_SHELL_USER_TOKENS_H_

#include <sys/stat.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "proto/session/access.h"

namespace weft {

class TokenTable {
 public:
  static absl::StatusOr<TokenTable> Parse(absl::string_view text);

  // Adds a token, in place of a former one of the same identity. InvalidArgument for a role that has none.
  absl::Status Put(const Identity& identity, absl::string_view token);
  std::optional<Identity> Find(absl::string_view token) const;
  // Returns the text of the file, without comments.
  std::string Text() const;

 private:
  struct Line {
    Identity identity;
    std::string hash;
  };
  std::vector<Line> lines_;
};

// Returns the table of a file; an empty one for a file that is not there.
absl::StatusOr<TokenTable> ReadTokens(const std::string& path);

// Follows a file: a changed one counts from the next call on, and without the file there are no tokens. One
// that is wrong does not count, and the former table stays.
class UserTokens {
 public:
  // The file must be there. `complain` hears why a changed file is not taken.
  static absl::StatusOr<std::unique_ptr<UserTokens>> Open(const std::string& path,
                                                          std::function<void(const absl::Status&)> complain);

  std::optional<Identity> Find(absl::string_view token);

 private:
  UserTokens(std::string path, std::function<void(const absl::Status&)> complain, TokenTable table);
  void Refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  const std::function<void(const absl::Status&)> complain_;
  Mutex mu_;
  struct stat seen_ ABSL_GUARDED_BY(mu_) = {};  // the file as it was looked at last
  TokenTable table_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_USER_TOKENS_H_
