#include "client/training/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr size_t kMaxLastWords = 64 << 10;
constexpr double kPatienceSeconds = 30;  // LibTorch may come over a network

void CloseIfOpen(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

void Complain(const char* program) {
  const char* reason = std::strerror(errno);
  // Use write, not stdio: only async-signal-safe calls are allowed between fork and exec. A message that
  // cannot be written is lost, and the exit code says enough.
  for (const char* part : {"cannot start ", program, ": ", reason, "\n"}) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
}

// Becomes the program. Runs in the child, between fork and exec.
[[noreturn]] void Become(const char* program, char* const* arguments, pid_t parent, int output, int error) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent ended before the kernel knew
  struct sigaction defaults {};
  defaults.sa_handler = SIG_DFL;
  for (int signal = 1; signal < 32; ++signal) sigaction(signal, &defaults, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(error, STDERR_FILENO);
  // Not every library marks its descriptors; sockets of this process must not live on in the child.
  for (int descriptor = 3; descriptor < 1024; ++descriptor) close(descriptor);
  execv(program, arguments);
  Complain(program);
  _exit(127);
}

// Appends the bytes that can be read now. Closes the descriptor at its end.
void Drain(int& descriptor, std::string* into) {
  char buffer[16384];
  while (descriptor >= 0) {
    const ssize_t n = read(descriptor, buffer, sizeof buffer);
    if (n > 0) {
      into->append(buffer, static_cast<size_t>(n));
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      CloseIfOpen(descriptor);
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::vector<std::string>& arguments,
                                                                  Output output) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int error[2] = {-1, -1}, out[2] = {-1, -1};
  const bool captured = output == Output::kCaptured;
  pid_t pid = -1;
  const pid_t parent = getpid();
  if (pipe2(error, O_CLOEXEC) == 0 && (!captured || pipe2(out, O_CLOEXEC) == 0)) pid = fork();
  if (pid == 0) Become(argv[0], argv.data(), parent, captured ? out[1] : error[1], error[1]);
  const int reason = errno;
  CloseIfOpen(error[1]);
  CloseIfOpen(out[1]);
  if (pid < 0) {
    CloseIfOpen(error[0]);
    CloseIfOpen(out[0]);
    // A process begins with a thread, so it counts against the same limit.
    const std::string cause = std::strerror(reason);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", arguments[0], ": ",
                     reason == EAGAIN ? std::string(NoThread(cause).message()) : cause));
  }
  // The parent sets the group too, as the child may not have come that far when it is first signalled.
  setpgid(pid, pid);
  for (const int descriptor : {error[0], out[0]}) {
    if (descriptor >= 0) fcntl(descriptor, F_SETFL, O_NONBLOCK);
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, error[0], out[0]));
}

// The pipes are closed some time before the process can be reaped: only its own descriptor says when. The
// kernel sets FD_CLOEXEC on it.
ChildProcess::ChildProcess(pid_t pid, int error, int output)
    : pid_(pid),
      error_(error),
      output_(output),
      process_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

ChildProcess::~ChildProcess() {
  if (!ended_) {
    Signal(SIGKILL);
    Reap(/*wait=*/true);
  }
  CloseIfOpen(error_);
  CloseIfOpen(output_);
}

void ChildProcess::Signal(int signal) const {
  if (ended_) return;
  if (kill(-pid_, signal) != 0) kill(pid_, signal);
}

void ChildProcess::AddTo(std::vector<pollfd>* descriptors) const {
  for (const int descriptor : {error_, output_, process_}) {
    if (descriptor >= 0) descriptors->push_back({descriptor, POLLIN, 0});
  }
}

void ChildProcess::Poll() {
  Drain(output_, &captured_);
  Drain(error_, &last_words_);
  if (last_words_.size() > kMaxLastWords) last_words_.erase(0, last_words_.size() - kMaxLastWords);
  if (ended_) return;
  Reap(/*wait=*/false);
  // Take the output between the last read and the end.
  if (ended_) Poll();
}

void ChildProcess::Reap(bool wait) {
  int status = 0;
  pid_t reaped;
  do {
    reaped = waitpid(pid_, &status, wait ? 0 : WNOHANG);
  } while (reaped < 0 && errno == EINTR);
  if (reaped == 0) return;
  ended_ = true;
  CloseIfOpen(process_);
  if (reaped == pid_ && WIFEXITED(status)) code_ = WEXITSTATUS(status);
  if (reaped == pid_ && WIFSIGNALED(status)) signal_ = WTERMSIG(status);
}

std::string ChildProcess::Ending() const {
  if (signal_ == 0) return absl::StrCat("exited with code ", code_);
  const char* name = sigabbrev_np(signal_);
  return name == nullptr ? absl::StrCat("was killed by signal ", signal_)
                         : absl::StrCat("was killed by SIG", name);
}

std::string ChildProcess::TakeOutput() {
  std::string taken;
  taken.swap(captured_);
  return taken;
}

absl::StatusOr<std::string> AnswerOf(const std::vector<std::string>& arguments) {
  auto process = ChildProcess::Start(arguments, ChildProcess::Output::kCaptured);
  if (!process.ok()) return process.status();
  ChildProcess& child = **process;
  const double until = MonotonicSeconds() + kPatienceSeconds;
  std::string output;
  while (!child.ended()) {
    std::vector<pollfd> descriptors;
    child.AddTo(&descriptors);
    poll(descriptors.data(), descriptors.size(), 250);
    child.Poll();
    output += child.TakeOutput();
    if (MonotonicSeconds() > until)
      return absl::DeadlineExceededError(absl::StrCat("it does not answer within ", kPatienceSeconds, " s"));
  }
  output += child.TakeOutput();
  if (child.succeeded()) return output;
  const absl::string_view words = absl::StripAsciiWhitespace(child.last_words());
  return absl::UnavailableError(words.empty() ? absl::StrCat("it ", child.Ending()) : words);
}

absl::StatusOr<std::string> SiblingProgram(const std::string& name) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (own.parent_path() / name).string();
  if (!error && access(path.c_str(), X_OK) == 0) return path;
  return absl::NotFoundError(
      absl::StrCat("there is no program ", name, " beside ", own.string(),
                   "; build all of Weft (make build) or install its programs together"));
}

absl::StatusOr<std::vector<Setting>> AskSettings(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--show-config", "json"});
  const absl::StatusOr<std::string> answer = AnswerOf(arguments);
  if (!answer.ok()) return answer.status();
  absl::StatusOr<std::vector<Setting>> settings = ParseSettingsJson(*answer);
  if (settings.ok()) return settings;
  return absl::UnavailableError(
      absl::StrCat(arguments[0], " does not tell its settings: its answer ", settings.status().message()));
}

}  // namespace weft
