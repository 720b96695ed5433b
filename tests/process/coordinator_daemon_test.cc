// The daemon weft-coordinator as a process: addresses, exit codes, signals, metrics that Prometheus' own
// checker accepts.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/metrics/heartbeat.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/eventually.h"
#include "tests/process/run_files.h"

namespace weft::coordinator_daemon_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Daemon {
 public:
  // `descriptors`: the most files that it may have open; 0 for what this process may.
  explicit Daemon(std::vector<std::string> arguments, rlim_t descriptors = 0) {
    int out[2];
    EXPECT_EQ(pipe(out), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], 2);
      close(out[0]);
      close(out[1]);
      const rlimit limit{descriptors, descriptors};
      if (descriptors > 0) setrlimit(RLIMIT_NOFILE, &limit);
      const std::string program = absl::StrCat(std::getenv("WEFT_BIN"), "/weft-coordinator");
      setenv("WEFT_LOG_FORMAT", "text", /*overwrite=*/0);  // which the tests read
      std::vector<char*> argv = {const_cast<char*>(program.c_str())};
      for (std::string& a : arguments) argv.push_back(a.data());
      argv.push_back(nullptr);
      execv(program.c_str(), argv.data());
      _exit(127);
    }
    close(out[1]);
    stderr_ = fdopen(out[0], "r");
  }
  ~Daemon() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    fclose(stderr_);
  }

  // The rest of the first line that holds `text`.
  std::string WaitFor(const std::string& text) {
    char line[4096];
    while (fgets(line, sizeof(line), stderr_) != nullptr) {
      log_ += line;
      const std::string l = line;
      const size_t at = l.find(text);
      if (at != std::string::npos) return l.substr(at + text.size(), l.size() - at - text.size() - 1);
    }
    ADD_FAILURE() << "'" << text << "' was not said, but: " << log_;
    return "";
  }
  void Signal(int signal) { kill(pid_, signal); }
  int ExitCode() {
    char line[4096];
    while (fgets(line, sizeof(line), stderr_) != nullptr) log_ += line;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  const std::string& log() const { return log_; }

 private:
  pid_t pid_ = 0;
  FILE* stderr_ = nullptr;
  std::string log_;
};

std::string Shell(const std::string& command, int* code) {
  FILE* f = popen(command.c_str(), "r");
  std::string out;
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), f)) out.append(buffer, n);
  *code = WEXITSTATUS(pclose(f));
  return out;
}

std::string Socket(const std::string& name) {
  return absl::StrCat("unix:", testing::TempDir(), "/", name, "-", getpid(), ".sock");
}

TEST(CoordinatorDaemon, Signals_StopItCleanly) {
  for (int signal : {SIGINT, SIGTERM}) {
    Daemon d({"--listen", Socket("weft-signal")});
    d.WaitFor("listening on ");
    d.Signal(signal);
    EXPECT_EQ(d.ExitCode(), 0) << d.log();
    EXPECT_THAT(d.log(), HasSubstr("stopping on"));
  }
}

TEST(CoordinatorDaemon, WrongUse_HasTheDocumentedExitCodes) {
  Daemon nonsense({"--listen", "127.0.0.1:0", "--nonsense"});
  EXPECT_EQ(nonsense.ExitCode(), 2);
  EXPECT_THAT(nonsense.log(), ::testing::StartsWith("weft-coordinator: "));
  EXPECT_EQ(Daemon({"--listen", "nonsense"}).ExitCode(), 78);
  Daemon open({"--listen", "0.0.0.0:0"});
  EXPECT_EQ(open.ExitCode(), 78);
  EXPECT_THAT(open.log(), HasSubstr("--insecure"));
  Daemon first({"--listen", "127.0.0.1:0"});
  Daemon second({"--listen", first.WaitFor("listening on ")});
  EXPECT_EQ(second.ExitCode(), 75);
  EXPECT_THAT(second.log(), HasSubstr("in use"));
}

// Neither messages to workers nor the store could hold the folders of runs in it.
TEST(CoordinatorDaemon, OutputRootThatIsNotUtf8_IsRefused) {
  const TestFolder folder;
  const CommandResult flag =
      Command::Run({"weft-coordinator", "--output-root", folder / "out\xff", "--check-config"});
  EXPECT_EQ(flag.code, 2);
  EXPECT_THAT(flag.err, AllOf(HasSubstr("--output-root"), HasSubstr("out\\xff\" is not UTF-8")));
  const CommandResult working_directory = Command::Run(
      {"/bin/sh", "-c", "mkdir \"$1\" && cd \"$1\" && exec \"$0\"/weft-coordinator --check-config",
       std::getenv("WEFT_BIN"), folder / "at\xff"});
  EXPECT_EQ(working_directory.code, 78);
  EXPECT_THAT(working_directory.err, HasSubstr("at\\xff/out\" is not UTF-8"));
}

TEST(CoordinatorDaemon, WithoutListen_TheAddressIsThatOfTheClients) {
  int code = 0;
  for (const char* help : {"weft-coordinator --help", "weft ls --help"}) {
    EXPECT_THAT(Shell(absl::StrCat(std::getenv("WEFT_BIN"), "/", help), &code), HasSubstr("127.0.0.1:7070"))
        << help;
  }
}

TEST(CoordinatorDaemon, History_EndsBehindSoManyEndedRuns) {
  const TestFolder folder;
  const std::string run = WriteSmallRun(folder, {}), address = Socket("weft-history");
  Daemon d({"--listen", address, "--history", "2", "--output-root", folder / "out"});
  d.WaitFor("listening on ");
  for (int i = 1; i <= 4; ++i) {
    ASSERT_EQ(Command::Run({"weft", "submit", run, "--detach", "--coordinator", address}).code, 0);
    ASSERT_EQ(Command::Run({"weft", "cancel", absl::StrCat(i), "--coordinator", address}).code, 0);
  }
  const CommandResult listed = Command::Run({"weft", "ls", "-o", "json", "--coordinator", address});
  ASSERT_EQ(listed.code, 0) << listed.err;
  std::vector<int> numbers;
  for (const auto& run_json : nlohmann::json::parse(listed.out)) numbers.push_back(run_json["run"]);
  EXPECT_THAT(numbers, ::testing::UnorderedElementsAre(3, 4)) << listed.out;
}

TEST(CoordinatorDaemon, SeveralAddresses_AllListen) {
  Daemon d({"--listen", "127.0.0.1:0", "--listen", Socket("weft-two")});
  EXPECT_THAT(d.WaitFor("listening on "), HasSubstr("127.0.0.1:"));
  EXPECT_THAT(d.WaitFor("listening on "), HasSubstr("unix:"));
}

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof(a)), 0);
  return fd;
}

// Connections that say nothing, as many as were asked for. The server closes those that are too many at once,
// and the others after a while; Fill opens others in their places.
class SilentCrowd {
 public:
  SilentCrowd(int port, size_t count) : port_(port), sockets_(count, -1) {}
  ~SilentCrowd() { Leave(); }

  void Fill() {
    for (int& socket : sockets_) {
      if (socket >= 0 && !EndedByPeer(socket)) continue;
      if (socket >= 0) close(socket);
      socket = ConnectTo(port_);
    }
  }
  void Leave() {
    for (const int socket : sockets_) {
      if (socket >= 0) close(socket);
    }
    sockets_.clear();
  }

 private:
  // The answer of the server is of no interest.
  static bool EndedByPeer(int socket) {
    char answer[4096];
    ssize_t n = 0;
    while ((n = recv(socket, answer, sizeof(answer), MSG_DONTWAIT)) > 0) {
    }
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

  const int port_;
  std::vector<int> sockets_;
};

// Its listener must outlive the moment in which no descriptor is left.
TEST(CoordinatorDaemon, RunsOutOfDescriptors_RefusesAndServesAgain) {
  Daemon d({"--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"}, /*descriptors=*/128);
  const std::string health =
      absl::StrCat("curl -s --max-time 20 http://127.0.0.1:", d.WaitFor("metrics on port "), "/healthz");
  const std::string address = d.WaitFor("listening on ");
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  const std::string ls = absl::StrCat(std::getenv("WEFT_BIN"), "/weft ls --coordinator ", address, " 2>&1");
  int code = 0;
  EXPECT_EQ(Shell(health, &code), "ok\n");
  SilentCrowd crowd(port, 300);
  std::string answer;
  EXPECT_TRUE(Eventually([&] {
    crowd.Fill();
    answer = Shell(health, &code);
    return answer.find("new connections are refused: ") != std::string::npos;
  })) << answer;
  EXPECT_TRUE(Eventually([&] {
    crowd.Fill();
    answer = Shell(ls, &code);
    return code == 69;
  })) << answer;
  crowd.Leave();
  EXPECT_TRUE(Eventually([&] { return (answer = Shell(health, &code)) == "ok\n"; })) << answer;
  EXPECT_TRUE(Eventually([&] {
    answer = Shell(ls, &code);
    return code == 0;
  })) << answer;
}

TEST(CoordinatorDaemon, IdleLoop_IsHealthy) {
  Daemon d({"--listen", Socket("weft-health"), "--metrics", "127.0.0.1:0"});
  const std::string health =
      absl::StrCat("curl -s --max-time 20 http://127.0.0.1:", d.WaitFor("metrics on port "), "/healthz");
  d.WaitFor("listening on ");
  int code = 0;
  EXPECT_EQ(Shell(health, &code), "ok\n");
  // A loop that turns only when something happens would be silent for too long by then, and stay so.
  usleep(Heartbeat::kMaxSilence / 1000 + 500'000);
  EXPECT_TRUE(Eventually([&] { return Shell(health, &code) == "ok\n"; })) << "an idle loop beats too";
}

TEST(CoordinatorDaemon, Metrics_AreCleanAndZeroBeforeTheFirstRun) {
  Daemon d({"--listen", Socket("weft-metrics"), "--metrics", "127.0.0.1:0"});
  const std::string url = absl::StrCat("http://127.0.0.1:", d.WaitFor("metrics on port "));
  d.WaitFor("listening on ");
  int code = 0;
  const std::string text = Shell(absl::StrCat("curl -sf ", url, "/metrics"), &code);
  ASSERT_EQ(code, 0);
  for (const char* series :
       {"weft_build_info{version=", "weft_epoch 1", "weft_jobs{state=\"blocked\"} 0",
        "weft_jobs{state=\"claimed\"} 0", "weft_job_completions_total{kind=\"backward_weight\"} 0",
        "weft_runs{state=\"running\"} 0", "weft_runs_ended_total{state=\"failed\"} 0",
        "weft_workers{state=\"free\"} 0", "weft_steps_total 0", "weft_loss 0",
        "weft_last_step_timestamp_seconds 0", "weft_fenced_total 0", "weft_duplicate_completions_total 0",
        "weft_grants_total 0", "weft_session_messages_total{direction=\"received\"} 0",
        "weft_session_messages_total{direction=\"sent\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(series));
  }
  EXPECT_EQ(Shell(absl::StrCat("curl -sf ", url, "/healthz"), &code), "ok\n");
  Shell("command -v promtool", &code);
  ASSERT_EQ(code, 0) << "promtool is missing: install Debian's package prometheus";
  const std::string complaints =
      Shell(absl::StrCat("curl -sf ", url, "/metrics | promtool check metrics 2>&1"), &code);
  EXPECT_EQ(code, 0) << complaints;
  EXPECT_EQ(complaints, "");
}

}  // namespace
}  // namespace weft::coordinator_daemon_test
