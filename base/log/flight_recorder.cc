#include "base/log/flight_recorder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/host_name.h"
#include "base/log/flight_dump.h"
#include "base/monotonic_clock.h"
#include "base/require.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr int kFatalSignals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE};
constexpr char kEnding[] = ".log";

// State of the handler of fatal signals.
std::atomic<const FlightRecorder*> of_process{nullptr};
std::array<struct sigaction, std::size(kFatalSignals)> former;  // handlers of before, by place
std::atomic<bool> fatal_begun{false}, fatal_over{false};

sigset_t OnlyUser1() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  return set;
}

// A path or line on the stack.
struct FixedText {
  std::array<char, PATH_MAX> text{};  // ends with 0
  size_t size = 0;

  FixedText& operator<<(absl::string_view more) {
    const size_t copied = std::min(more.size(), text.size() - 1 - size);
    std::memcpy(text.data() + size, more.data(), copied);
    size += copied;
    text[size] = '\0';
    return *this;
  }
};

// Says it on standard error, unless nobody reads that.
void Say(const FixedText& line) {
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, line.text.data(), line.size);
}

std::string Described(int error) { return std::generic_category().message(error); }

}  // namespace

std::string FolderByDefault() {
  // systemd names several folders as A:B.
  if (const char* logs = std::getenv("LOGS_DIRECTORY"); logs != nullptr && *logs != '\0') {
    const std::string first = logs;
    return first.substr(0, first.find(':'));
  }
  const char* const temporary = std::getenv("TMPDIR");
  return temporary == nullptr || *temporary == '\0' ? "/tmp" : temporary;
}

FlightRecorder::FlightRecorder(const Options& options, FlightRing& ring, const DaemonLog& log)
    : program_(options.program),
      folder_(std::filesystem::absolute(options.folder.empty() ? FolderByDefault() : options.folder)
                  .lexically_normal()
                  .string()),
      prefix_(absl::StrCat(folder_, "/flight-", program_, "-", HostName(), "-", getpid(), "-")),
      process_(absl::StrCat(" program=", program_, " version=", options.version, " host=", HostName(),
                            " pid=", getpid())),
      ring_(ring),
      log_(log) {
  if (access(folder_.c_str(), W_OK | X_OK) != 0) {
    log_.Warning(absl::StrCat("the flight recorder cannot write into ", folder_, ": ", Described(errno),
                              "; name another folder with --flight-recorder"));
  }
  RemoveOldest();
  const sigset_t asked = OnlyUser1();
  pthread_sigmask(SIG_BLOCK, &asked, nullptr);
  thread_ = StartThread([this] { Run(); });
  TakeFatalSignals();
}

FlightRecorder::~FlightRecorder() {
  {
    MutexLock lock(mu_);
    ends_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
  // A handler that somebody has put over this one may still call it; then it finds no recorder.
  of_process = nullptr;
}

void FlightRecorder::Stalled(absl::string_view why) {
  MutexLock lock(mu_);
  stall_ = std::string(why);
  pthread_kill(thread_.native_handle(), SIGUSR1);
}

void FlightRecorder::DumpNow(absl::string_view why) { Dump("stall", LogSeverity::kWarning, why); }

void FlightRecorder::Watch(std::function<std::string()> problem) {
  MutexLock lock(watching_);
  problem_ = std::move(problem);
  seen_ = 0;
}

void FlightRecorder::Run() {
  const sigset_t asked = OnlyUser1();
  constexpr timespec kBetweenLooks{2, 0};
  while (true) {
    const bool woken = sigtimedwait(&asked, nullptr, &kBetweenLooks) == SIGUSR1;
    std::optional<std::string> stall;
    {
      MutexLock lock(mu_);
      if (ends_) return;
      stall.swap(stall_);
    }
    if (stall.has_value()) {
      Dump("stall", LogSeverity::kWarning, *stall);
    } else if (woken) {
      Dump("SIGUSR1", LogSeverity::kInfo, "");
    }
    LookForProblem();
  }
}

void FlightRecorder::LookForProblem() {
  std::string problem;
  {
    MutexLock lock(watching_);
    if (problem_) problem = problem_();
    seen_ = problem.empty() ? 0 : seen_ + 1;
    if (seen_ != 2) return;
  }
  Dump("stall", LogSeverity::kWarning, problem);
}

void FlightRecorder::Dump(absl::string_view cause, LogSeverity severity, absl::string_view why) {
  FixedText path;
  path << prefix_ << cause << kEnding;
  int error = 0;
  {
    MutexLock lock(writing_);
    EventText head("dump");
    head.AddWord("cause", cause);
    if (!why.empty()) head.AddText("why", why);
    error = WriteFile(path.text.data(), head);
    if (error == 0) RemoveOldest();
  }
  const absl::string_view file(path.text.data(), path.size);
  const std::string what = absl::StrCat(cause, why.empty() ? "" : ": ", why, ": the last events ");
  if (error != 0) {
    log_.Warning(absl::StrCat(what, "cannot be written into ", file, ": ", Described(error)));
    return;
  }
  ++dumps_;
  log_.Write(severity, absl::StrCat(what, "are in ", file));
}

// The name can be known to others, and the folder may be everybody's: the file is made anew, and no link is
// followed.
int FlightRecorder::WriteFile(const char* path, const EventText& head) const {
  unlink(path);
  constexpr mode_t kMode = 0640;
  const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (file < 0) return errno;
  const int error = WriteFlightDump(file, ring_, UnixMinusMonotonic(), head, process_);
  close(file);
  return error;
}

void FlightRecorder::RemoveOldest() const {
  namespace fs = std::filesystem;
  const std::string own = absl::StrCat("flight-", program_, "-");
  std::vector<std::pair<fs::file_time_type, fs::path>> dumps;
  std::error_code unreadable;
  for (auto it = fs::directory_iterator(folder_, unreadable); !unreadable && it != fs::directory_iterator();
       it.increment(unreadable)) {
    const std::string name = it->path().filename().string();
    if (!absl::StartsWith(name, own) || !absl::EndsWith(name, kEnding)) continue;
    std::error_code gone;
    const fs::file_time_type written = it->last_write_time(gone);
    if (!gone) dumps.emplace_back(written, it->path());
  }
  std::sort(dumps.begin(), dumps.end());
  for (size_t i = 0; i + kKept < dumps.size(); ++i) unlink(dumps[i].second.c_str());
}

void FlightRecorder::TakeFatalSignals() {
  Require(of_process.exchange(this) == nullptr, "a process has one flight recorder");
#ifdef WEFT_TAKES_FATAL_SIGNALS
  struct sigaction own {};
  own.sa_sigaction = &FlightRecorder::OnFatalSignal;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK;
  // A fault inside of the handler ends the process at once.
  for (const int signal : kFatalSignals) sigaddset(&own.sa_mask, signal);
  for (size_t i = 0; i < former.size(); ++i) {
    struct sigaction before {};
    sigaction(kFatalSignals[i], nullptr, &before);
    if (before.sa_sigaction == own.sa_sigaction) continue;  // of a recorder before this one
    former[i] = before;
    sigaction(kFatalSignals[i], &own, nullptr);
  }
#endif
}

void FlightRecorder::OnFatalSignal(int signal, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  if (const FlightRecorder* const recorder = of_process; recorder != nullptr) {
    if (!fatal_begun.exchange(true)) {
      recorder->DumpAtFatalSignal(signal, *info);
      fatal_over = true;
    } else {
      // Another thread writes the dump: the process does not end before that.
      constexpr timespec kPause{0, 10'000'000};
      constexpr int kMostPauses = 500;
      for (int i = 0; i < kMostPauses && !fatal_over; ++i) nanosleep(&kPause, nullptr);
    }
  }
  const auto place = static_cast<size_t>(
      std::find(std::begin(kFatalSignals), std::end(kFatalSignals), signal) - std::begin(kFatalSignals));
  sigaction(signal, &former[place], nullptr);
  // It is blocked until this handler returns.
  if (syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), signal, info) != 0) raise(signal);
  errno = error;
}

void FlightRecorder::DumpAtFatalSignal(int signal, const siginfo_t& info) const {
  FixedText cause, path;
  cause << "SIG" << sigabbrev_np(signal);
  const absl::string_view name(cause.text.data(), cause.size);
  path << prefix_ << name << kEnding;
  EventText head("dump");
  head.AddWord("cause", name).Add("code", info.si_code);
  if (info.si_code <= 0) head.Add("sender", info.si_pid);
  const int failed = WriteFile(path.text.data(), head);
  FixedText line;
  line << program_ << ": note: " << name << ": the last events "
       << (failed == 0 ? "are in " : "cannot be written into ") << path.text.data() << "\n";
  Say(line);
}

}  // namespace weft
