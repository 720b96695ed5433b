// weft-coordinator: takes runs in, keeps sessions with worker processes, hands out jobs.
#include <signal.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "coordinator/shell/coordinator_server.h"
#include "coordinator/shell/spec_planner.h"
#include "proto/metrics/metrics.h"
#include "proto/metrics/metrics_server.h"

namespace weft {
namespace {

// DESIGN.md section 6.
enum ExitCode { kOk = 0, kUsage = 2, kTryAgain = 75, kBadConfiguration = 78 };

struct Flags {
  std::vector<std::string> listen;
  std::string metrics;
  bool insecure = false;
  int grace = 10, waiting = 600, preparing = 300, progress = 600, finishing = 600;
};

int Complain(const absl::Status& status) {
  std::cerr << "weft-coordinator: " << status.message() << "\n";
  return status.code() == absl::StatusCode::kUnavailable ? kTryAgain : kBadConfiguration;
}

CoreOptions CoreOptionsOf(const Flags& flags) {
  constexpr int64_t kSecond = 1'000'000'000;
  CoreOptions core;
  core.grace_ns = flags.grace * kSecond;
  core.waiting_ns = flags.waiting * kSecond;
  core.preparing_ns = flags.preparing * kSecond;
  core.progress_ns = flags.progress * kSecond;
  core.finishing_ns = flags.finishing * kSecond;
  return core;
}

// One line a change, for an operator who looks at the log.
CoordinatorObserver Log() {
  CoordinatorObserver observer;
  observer.run = [](const RunInfo& r) {
    const std::string state(RunStateName(r.state));
    std::cerr << absl::StrCat("weft-coordinator: run ", r.id, " (", r.name, ") is ", state,
                              r.reason.empty() ? "" : ": ", r.reason, "\n");
  };
  observer.worker = [](const WorkerChange& w) {
    const char* verb = w.kind == WorkerChange::Kind::kJoined ? " joined"
                       : w.kind == WorkerChange::Kind::kLeft ? " left"
                                                             : " was lost";
    std::cerr << absl::StrCat("weft-coordinator: ", w.label, verb, w.reason.empty() ? "" : ": ", w.reason,
                              "\n");
  };
  return observer;
}

int Serve(const Flags& flags) {
  // Blocked before any thread starts, so that only sigwait takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Metrics metrics;
  std::unique_ptr<MetricsServer> metrics_server;
  if (!flags.metrics.empty()) {
    auto started = MetricsServer::Start(flags.metrics, &metrics, flags.insecure);
    if (!started.ok()) return Complain(started.status());
    metrics_server = *std::move(started);
    std::cerr << "weft-coordinator: metrics on port " << metrics_server->port() << "\n";
  }
  CoordinatorServerOptions options;
  options.listen = flags.listen;
  options.insecure = flags.insecure;
  options.core = CoreOptionsOf(flags);
  options.planner = PlanSpec;
  options.observer = Log();
  options.metrics = &metrics;
  auto server = CoordinatorServer::Start(std::move(options));
  if (!server.ok()) return Complain(server.status());
  for (const std::string& address : (*server)->addresses()) {
    std::cerr << "weft-coordinator: listening on " << address << "\n";
  }
  int signal = 0;
  sigwait(&signals, &signal);
  std::cerr << "weft-coordinator: stopping on " << strsignal(signal) << "\n";
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second one ends the process at once
  (*server)->Stop(absl::StrCat("it got the signal ", strsignal(signal)));
  return kOk;
}

int Main(int argc, char** argv) {
  CLI::App app("Coordinates training runs: takes them in, and hands their jobs to worker processes.",
               "weft-coordinator");
  app.footer(
      "Examples:\n"
      "  weft-coordinator --listen unix:/run/weft/coordinator.sock\n"
      "  weft-coordinator --listen 127.0.0.1:7070 --listen unix:/run/weft/coordinator.sock --metrics "
      "127.0.0.1:9100\n"
      "Exit codes: 0 stopped by a signal, 2 wrong usage, 75 an address is in use, 78 an address is wrong or "
      "refused.");
  Flags flags;
  app.add_option("--listen", flags.listen,
                 "Address for workers and clients: unix:PATH or HOST:PORT; may be repeated")
      ->required()
      ->take_all();
  app.add_option("--metrics", flags.metrics,
                 "Serve /metrics and /healthz here: HOST:PORT; port 0 picks a free one");
  app.add_flag("--insecure", flags.insecure,
               "Allow addresses that other machines reach, without encryption or authentication");
  const auto seconds = CLI::Range(1, 1'000'000);
  app.add_option("--grace", flags.grace, "Seconds for a worker's broken session to come back")
      ->check(seconds)
      ->capture_default_str();
  app.add_option("--waiting", flags.waiting, "Seconds that a run waits for worker processes to connect")
      ->check(seconds)
      ->capture_default_str();
  app.add_option("--preparing", flags.preparing, "Seconds for workers to prepare a run")
      ->check(seconds)
      ->capture_default_str();
  app.add_option("--progress", flags.progress, "Seconds without any job done before a run fails")
      ->check(seconds)
      ->capture_default_str();
  app.add_option("--finishing", flags.finishing, "Seconds for workers to save and report after the last job")
      ->check(seconds)
      ->capture_default_str();
  app.set_version_flag("--version", "weft-coordinator 0.1.0");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kOk : kUsage;
  }
  signal(SIGPIPE, SIG_IGN);
  return Serve(flags);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
