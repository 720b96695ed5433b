// Runs one program of the build as a person would: arguments in, exit code and both outputs out.
//
// For tests only. Every run has a deadline, after which the program is killed and the test fails with the
// output so far. Deadlines are for hangs only; the environment's WEFT_TEST_TIME_FACTOR multiplies them
// (cmake/weft_sanitizers.cmake).
#ifndef WEFT_TESTS_PROCESS_COMMAND_H_
#define WEFT_TESTS_PROCESS_COMMAND_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/test_folder.h"

namespace weft {

struct CommandResult {
  int code = -1;   // exit code; -1 if a signal ended it
  int signal = 0;  // that signal
  bool timed_out = false;
  std::string out, err;
};

class Command {
 public:
  // `arguments[0]` is the name of a program in the build's bin folder, or a path.
  static CommandResult Run(const std::vector<std::string>& arguments, int seconds = 60);

  // Starts it; the destructor kills it if it still runs.
  explicit Command(const std::vector<std::string>& arguments);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  // Sends a signal. Returns after SIGSTOP when the program has stopped.
  void Signal(int signal) const;
  // Reads until standard error or output contains `text`; returns false if the program ended or the time was
  // over before.
  bool WaitFor(const std::string& text, int seconds);
  CommandResult Wait(int seconds);

 private:
  // Takes the output that there is for at most `milliseconds`; returns false when both outputs are at their
  // end.
  bool Read(int milliseconds);

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  CommandResult result_;
};

// Returns the command as one that reads and writes only what the permissions of files allow, as root does
// not. It ends with another code than 0 where that cannot be had; `weft --version` tells.
std::vector<std::string> HeldToPermissions(std::vector<std::string> arguments);

// Returns true if the process has ended, whether somebody has waited for it or not.
bool HasEnded(pid_t pid);

std::string ReadWholeFile(const std::string& path);

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_COMMAND_H_
