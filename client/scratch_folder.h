// A private folder for sockets and other things that must not outlive the process: mode 0700, removed with
// all it holds at destruction.
#ifndef WEFT_CLIENT_SCRATCH_FOLDER_H_
#define WEFT_CLIENT_SCRATCH_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace weft {

class ScratchFolder {
 public:
  // In $TMPDIR, or in /tmp where that would make the paths of unix sockets too long. Failure: Unavailable.
  static absl::StatusOr<std::unique_ptr<ScratchFolder>> Make();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

}  // namespace weft

#endif  // WEFT_CLIENT_SCRATCH_FOLDER_H_
