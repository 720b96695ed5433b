// Opens the files of runs, beneath the folders that an operator chose.
//
// Whoever submits a run names files: data, weights, checkpoints, a folder for the results. The daemon opens
// them with its own rights. A daemon that serves others is therefore confined to roots: the kernel resolves
// each path beneath one of them (openat2 with RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS), so that neither
// `..` nor a link leads out, and nobody can exchange a folder for a link between a check and its use. A
// relative link that stays beneath its root is followed: caches of data sets consist of them. An absolute
// link is not.
//
// A process that was not confined opens any path, as `weft train` does with the rights of its user. The roots
// are the whole process's: all that writes or reads a run's file comes here, and no caller can forget them
// (tests/run_file_opens.py).
// Functions that only look at names, rename or remove take paths as they are; the names are those that Weft
// gives its own files.
//
// Threads: ConfineRunFiles before the first file of a run is opened; the rest any. Failure: as stated.
#ifndef WEFT_BASE_RUN_FILES_H_
#define WEFT_BASE_RUN_FILES_H_

#include <sys/types.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace weft {

// Confines this process to the roots. InvalidArgument where one is no folder or the kernel has no openat2
// (Linux 5.6); then nothing has changed. Without a root the process is not confined.
absl::Status ConfineRunFiles(const std::vector<std::string>& roots);

// Checks a path that a run names; it may be missing. PermissionDenied if it is not beneath a root.
absl::Status CheckRunPath(const std::string& path);

// Opens a file as open(2) does, with O_CLOEXEC. Returns the descriptor; or -1 with errno, which is EXDEV for
// a path that leads out of its root.
int OpenRunFile(const std::string& path, int flags, mode_t mode = 0);

// Returns what an errno of OpenRunFile means.
std::string RunFileError(int error);

// Says why a file or folder cannot be read: InvalidArgument with the path and the reason. OK if it can be,
// and if there is none, which callers report in words of their own. For the rights of a user; roots do not
// count.
absl::Status CheckReadable(const std::string& path);

// Opens a regular file as a stream. Where OpenRunFile would fail, the stream is not open, and errno is as
// there.
std::ifstream RunFileToRead(const std::string& path);

}  // namespace weft

#endif  // WEFT_BASE_RUN_FILES_H_
