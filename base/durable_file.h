// Writes a file to the disk, complete or not at all: under a temporary name, synced, then renamed, and its
// folder synced. After a crash, or a power cut, the path holds the old content or the new.
//
// The disk writes the start of a large file while its end is still on the way into the page cache: a thread
// of the file asks for that, because it takes as much time as the copying. So the sync at the end has little
// to wait for. If no thread can be started, that sync writes everything.
//
// Threads: its owner's; the other one shares the descriptor and a count. Failure: Unavailable with the path
// and the reason, from Finish; nothing is left then.
#ifndef WEFT_BASE_DURABLE_FILE_H_
#define WEFT_BASE_DURABLE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace weft {

class DurableFile {
 public:
  explicit DurableFile(std::string path);
  // Removes a file that is not finished.
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void Append(const void* data, size_t bytes);
  // Replaces the first bytes.
  void ReplaceBegin(const void* data, size_t bytes);
  // Syncs the file, gives it its name, and syncs its folder.
  absl::Status Finish();

 private:
  void Fail(const char* what, int error);
  // Tells the other thread how much there is, and starts it.
  void Push();
  void WriteBack();
  void EndWriteBack();

  const std::string path_, temporary_;
  int fd_ = -1;
  uint64_t length_ = 0, pushed_ = 0;
  absl::Status status_;
  std::thread thread_;
  Mutex mu_;
  CondVar changed_;
  uint64_t ready_ ABSL_GUARDED_BY(mu_) = 0;  // bytes that the disk may begin to write
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// Returns the file that is replaced when one is written to a path that a user named: the path itself where
// nothing or a regular file is there, and the file at the end of a symbolic link to one. InvalidArgument for
// anything else, as a folder, a pipe or a device: a rename would put a regular file in its place.
absl::StatusOr<std::string> ReplaceableFile(const std::string& path);

// Writes a small file in one call.
absl::Status WriteWholeFile(const std::string& path, absl::string_view text);

// Writes all bytes to an open file. Returns false, with errno, if that fails.
bool WriteAll(int fd, const void* data, size_t n);

// Makes durable what is there now: the bytes of a file, or the names in a folder. Unavailable with the path.
absl::Status SyncToDisk(const std::string& path);

// Makes the folder and its missing parents, and their names durable. Returns those that it made, outermost
// first; Unavailable with its name.
absl::StatusOr<std::vector<std::string>> MakeFolders(const std::string& folder);

}  // namespace weft

#endif  // WEFT_BASE_DURABLE_FILE_H_
