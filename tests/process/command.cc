#include "tests/process/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

void Check(bool condition, const char* what) {
  if (condition) return;
  std::perror(what);
  std::abort();
}

// Slow builds, as those with sanitizers, are given more time.
Clock::time_point DeadlineIn(int seconds) {
  const char* factor = std::getenv("WEFT_TEST_TIME_FACTOR");
  return Clock::now() + std::chrono::seconds(seconds) * (factor == nullptr ? 1 : std::atoi(factor));
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto remaining =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return remaining > 0 ? static_cast<int>(remaining) : 0;
}

std::string Program(const std::string& name) {
  const char* bin = std::getenv("WEFT_BIN");
  return name.find('/') == std::string::npos && bin != nullptr ? std::string(bin) + "/" + name : name;
}

}  // namespace

Command::Command(const std::vector<std::string>& arguments) {
  setenv("WEFT_LOG_FORMAT", "text", /*overwrite=*/0);  // which tests read
  const std::string program = Program(arguments[0]);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int out[2], err[2];
  Check(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0, "pipe2");
  pid_ = fork();
  Check(pid_ >= 0, "fork");
  if (pid_ == 0) {
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execv(program.c_str(), argv.data());
    std::perror(program.c_str());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Command::~Command() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) close(out_);
  if (err_ >= 0) close(err_);
}

CommandResult Command::Run(const std::vector<std::string>& arguments, int seconds) {
  return Command(arguments).Wait(seconds);
}

void Command::Signal(int signal) const {
  Check(pid_ > 0, "a signal for a program that has ended");
  kill(pid_, signal);
  if (signal != SIGSTOP) return;
  // Threads on other cores run on for a while.
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT);
}

bool Command::Read(int milliseconds) {
  pollfd fds[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  if (out_ < 0 && err_ < 0) return false;
  poll(fds, 2, milliseconds);
  for (int i = 0; i < 2; ++i) {
    if (fds[i].fd < 0 || fds[i].revents == 0) continue;
    char buffer[65536];
    const ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
    if (n > 0) {
      (i == 0 ? result_.out : result_.err).append(buffer, static_cast<size_t>(n));
    } else {
      close(fds[i].fd);
      (i == 0 ? out_ : err_) = -1;
    }
  }
  return out_ >= 0 || err_ >= 0;
}

bool Command::WaitFor(const std::string& text, int seconds) {
  const Clock::time_point deadline = DeadlineIn(seconds);
  const auto found = [&] {
    return result_.out.find(text) != std::string::npos || result_.err.find(text) != std::string::npos;
  };
  while (!found()) {
    const int remaining = MillisecondsUntil(deadline);
    if (remaining == 0 || !Read(remaining)) return found();
  }
  return true;
}

CommandResult Command::Wait(int seconds) {
  const Clock::time_point deadline = DeadlineIn(seconds);
  while (true) {
    const int remaining = MillisecondsUntil(deadline);
    if (remaining == 0) {
      result_.timed_out = true;
      kill(pid_, SIGKILL);
      break;
    }
    if (!Read(remaining)) break;
  }
  // Outputs at their end do not mean that it has ended.
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (MillisecondsUntil(deadline) == 0) {
      result_.timed_out = true;
      kill(pid_, SIGKILL);
    }
    usleep(5000);
  }
  pid_ = -1;
  if (WIFEXITED(status)) result_.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  return result_;
}

std::vector<std::string> HeldToPermissions(std::vector<std::string> arguments) {
  if (geteuid() != 0) return arguments;
  arguments[0] = Program(arguments[0]);
  const std::string rights = "-dac_override,-dac_read_search";
  arguments.insert(arguments.begin(),
                   {"/usr/bin/env", "setpriv", "--bounding-set=" + rights, "--inh-caps=" + rights});
  return arguments;
}

bool HasEnded(pid_t pid) {
  const std::string status = ReadWholeFile("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = status.rfind(')');
  return name_end == std::string::npos || status.substr(name_end, 3) == ") Z";
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace weft
