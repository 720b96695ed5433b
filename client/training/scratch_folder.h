// Keeps a private folder for sockets and other things that must not outlive the process: mode 0700, removed
// with all it holds at destruction. The next process that makes one removes the folders of processes that
// died. A lock in each folder, which ends with its process, tells which folders they are.
#ifndef WEFT_CLIENT_TRAINING_SCRATCH_FOLDER_H_
#define WEFT_CLIENT_TRAINING_SCRATCH_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace weft {

class ScratchFolder {
 public:
  // Makes a folder in $TMPDIR, or in /tmp where that would make the paths of unix sockets too long. Failure:
  // Unavailable.
  static absl::StatusOr<std::unique_ptr<ScratchFolder>> Make();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  ScratchFolder(std::string path, int owner) : path_(std::move(path)), owner_(owner) {}
  const std::string path_;
  const int owner_;  // the lock's descriptor; -1 if there could be none
};

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_SCRATCH_FOLDER_H_
