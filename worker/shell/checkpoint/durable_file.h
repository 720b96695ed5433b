// Writes a file to the disk, complete or not at all: under a temporary name, synced, then renamed. After a
// crash the path holds the old content or the new.
//
// The disk writes the begin of a large file while its end is still on the way into the page cache: a thread
// of the file asks for that, because it takes as much time as the copying. So the sync at the end has little
// to wait for. Where no thread can be had, the sync does it all.
//
// Threads: its owner's; the other one shares the descriptor and a count. Failure: Unavailable with the path
// and the reason, from Finish; nothing is left then.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_DURABLE_FILE_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_DURABLE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
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
  // Syncs the file and gives it its name.
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

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_DURABLE_FILE_H_
