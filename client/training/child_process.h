// Runs a program that this process has started and owns: its outputs, its end, and its end with this process.
//
// The child is its own process group, so that a Ctrl-C of the terminal reaches only this process, which
// decides. The kernel kills it when the thread that started it ends, however that happens. It starts with
// default signals, no open descriptor but its standard ones, and nothing on standard input.
//
// Start it from the main thread, which lives as long as the process. One thread owns an object and polls it.
// Destruction kills a child that still runs.
#ifndef WEFT_CLIENT_TRAINING_CHILD_PROCESS_H_
#define WEFT_CLIENT_TRAINING_CHILD_PROCESS_H_

#include <poll.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/settings/settings.h"

namespace weft {

class ChildProcess {
 public:
  // Standard output either joins standard error, or is captured for TakeOutput.
  enum class Output { kJoinsError, kCaptured };

  // Starts the program at the path `arguments[0]`. Failure: ResourceExhausted, of the system's limits.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& arguments,
                                                             Output output);

  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Sends the signal to the child's whole process group; does nothing if it has ended.
  void Signal(int signal) const;

  // Adds the descriptors that are readable when Poll has something to do.
  void AddTo(std::vector<pollfd>* descriptors) const;
  // Takes the child's output and notices its end; never blocks.
  void Poll();
  bool ended() const { return ended_; }

  // Returns true if the child has exited with code 0; valid after its end.
  bool succeeded() const { return ended_ && signal_ == 0 && code_ == 0; }
  int code() const { return code_; }  // exit code; -1 if a signal ended it
  // Returns "exited with code 3", "was killed by SIGKILL".
  std::string Ending() const;

  // Returns the last 64 KiB that it wrote to standard error.
  const std::string& last_words() const { return last_words_; }
  // Returns the text that it wrote to standard output since the last call.
  std::string TakeOutput();

 private:
  ChildProcess(pid_t pid, int error, int output);
  void Reap(bool wait);

  const pid_t pid_;
  int error_, output_;  // ends of pipes; -1 when closed
  int process_;  // descriptor of the process, readable when it has ended; -1 then, or where it has none
  bool ended_ = false;
  int code_ = -1, signal_ = 0;
  std::string last_words_, captured_;
};

// Runs a program that answers and ends, and returns what it prints. Unavailable, with its last words, if it
// ends with an error; DeadlineExceeded after half a minute, when it is killed; ResourceExhausted as Start.
absl::StatusOr<std::string> AnswerOf(const std::vector<std::string>& arguments);

// Returns the path of the program of that name in the folder of the running program. NotFound names that
// folder.
absl::StatusOr<std::string> SiblingProgram(const std::string& name);

// Asks the daemon at the path `arguments[0]` for the settings that it would take with these arguments. Fails
// as AnswerOf; Unavailable too for an answer that is no list of settings.
absl::StatusOr<std::vector<Setting>> AskSettings(std::vector<std::string> arguments);

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_CHILD_PROCESS_H_
