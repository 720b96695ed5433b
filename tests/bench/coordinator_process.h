// Runs the daemon weft-coordinator for benchmarks of the real process, and reads what it has in use.
//
// Its log goes to a file in the folder, and so do its store and its output. Failure ends the benchmark with a
// sentence. One thread, the one that makes it; the process ends with that.
#ifndef WEFT_TESTS_BENCH_COORDINATOR_PROCESS_H_
#define WEFT_TESTS_BENCH_COORDINATOR_PROCESS_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "client/runs/runs_client.h"

namespace weft {

[[noreturn]] inline void EndBench(const std::string& sentence) {
  std::fprintf(stderr, "%s\n", sentence.c_str());
  std::exit(1);
}

class CoordinatorProcess {
 public:
  // Starts it; it listens on a unix socket and on a port of loopback, and keeps its runs in the folder.
  CoordinatorProcess(const std::string& bin, const std::string& folder)
      : socket_(absl::StrCat("unix:", folder, "/coordinator.sock")),
        log_(absl::StrCat(folder, "/coordinator.log")) {
    std::filesystem::remove(log_);
    std::vector<std::string> arguments = {bin + "/weft-coordinator",
                                          "--listen",
                                          socket_ + ",127.0.0.1:0",
                                          "--metrics",
                                          "127.0.0.1:0",
                                          "--log-format",
                                          "text",
                                          "--output-root",
                                          folder + "/out",
                                          "--store",
                                          folder + "/store"};
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // however the benchmark ends
      const int log = open(log_.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      dup2(log, STDOUT_FILENO);
      dup2(log, STDERR_FILENO);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    metrics_port_ = std::stoi(AwaitLine("metrics on port "));
    tcp_ = AwaitLine("listening on 127");
    tcp_ = "127" + tcp_;
  }
  ~CoordinatorProcess() {
    if (pid_ > 0) End(SIGKILL);
  }
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;

  const std::string& socket() const { return socket_; }
  const std::string& tcp() const { return tcp_; }
  int metrics_port() const { return metrics_port_; }
  std::unique_ptr<RunsClient> Client() const { return *RunsClient::Create(socket_, {}, 60'000'000'000); }

  // Ends it, and returns its exit code; -1 if the signal did that.
  int End(int signal) {
    kill(pid_, signal);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  double ResidentMiB() const {
    std::ifstream statm(absl::StrCat("/proc/", pid_, "/statm"));
    double pages = 0, resident = 0;
    statm >> pages >> resident;
    return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
  }
  int Descriptors() const {
    std::filesystem::directory_iterator all(absl::StrCat("/proc/", pid_, "/fd"));
    return static_cast<int>(std::distance(begin(all), end(all)));
  }
  // Returns the seconds of processor time that it has used.
  double CpuSeconds() const {
    std::ifstream stat(absl::StrCat("/proc/", pid_, "/stat"));
    std::string word;
    for (int i = 0; i < 13; ++i) stat >> word;
    double user = 0, system = 0;
    stat >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

 private:
  // Waits until the log has the text, and returns what follows it in its line.
  std::string AwaitLine(const std::string& text) const {
    const int64_t until = MonotonicNow() + 60'000'000'000;
    while (MonotonicNow() < until) {
      std::ifstream log(log_);
      for (std::string line; std::getline(log, line);) {
        const size_t at = line.find(text);
        if (at == std::string::npos) continue;
        const size_t from = at + text.size();
        return line.substr(from, line.find_first_of("\" ", from) - from);
      }
      usleep(5000);
    }
    EndBench(absl::StrCat("weft-coordinator does not start; see ", log_));
  }

  const std::string socket_, log_;
  std::string tcp_;
  int metrics_port_ = 0;
  pid_t pid_ = -1;
};

// Returns the run file of a small gpt that is cut into so many stages, as JSON. Its data is never read.
inline std::string GptRunJson(int stages, int microbatches, int steps, const std::string& name) {
  return absl::StrCat(
      R"({"name":")", name, R"(","model":{"gpt":{"layers":)", stages,
      R"(,"width":32,"heads":2,"context":32}},"data":{"text":{"path":"/dev/null"}},"train":{"steps":)", steps,
      R"(,"batch":)", microbatches, R"(,"microbatches":)", microbatches,
      R"(,"optimizer":{"adamw":{"lr":0.001}}},"stages":)", stages, R"(,"schedule":{"1f1b":{}}})");
}

}  // namespace weft

#endif  // WEFT_TESTS_BENCH_COORDINATOR_PROCESS_H_
