// Runs weft-coordinator: takes runs in, keeps sessions with worker processes, hands out jobs.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/durable_file.h"
#include "base/host_name.h"
#include "base/log/daemon_log.h"
#include "base/log/flight_recorder.h"
#include "base/log/flight_ring.h"
#include "base/log/log_flags.h"
#include "base/metrics/daemon_metrics.h"
#include "base/metrics/metrics.h"
#include "base/metrics/metrics_server.h"
#include "base/monotonic_clock.h"
#include "base/net/address.h"
#include "base/net/security_flags.h"
#include "base/open_files.h"
#include "base/path_text.h"
#include "base/release.h"
#include "base/run_files.h"
#include "base/service/service_notices.h"
#include "base/settings/reload.h"
#include "base/settings/settings.h"
#include "base/threads.h"
#include "coordinator/record/kept_checkpoint.h"
#include "coordinator/record/run_records.h"
#include "coordinator/shell/coordinator_server.h"
#include "coordinator/shell/daemon_store.h"
#include "coordinator/shell/restored_runs.h"
#include "coordinator/shell/run_lines.h"
#include "coordinator/shell/spec_planner.h"
#include "coordinator/shell/status_pages.h"
#include "coordinator/store/etcd_store.h"
#include "coordinator/store/sqlite_store.h"
#include "proto/session/access.h"
#include "run/unknown_name.h"

namespace weft {
namespace {

// The exit codes of docs/guide/operating.md.
enum ExitCode { kOk = 0, kUsage = 2, kTryAgain = 75, kBadConfiguration = 78 };

struct Flags {
  std::vector<std::string> listen = {std::string(kDefaultCoordinator)};
  std::string metrics;
  std::string output_root = "out";
  std::vector<std::string> roots;
  std::string store, store_tls, backup;
  bool store_insecure = false;
  SecurityFlags security;
  std::string tokens;
  LogFlags log;
  int lease = 15, grace = 10, waiting = 600, preparing = 300, progress = 600, finishing = 600;
  int spin_us = 0;
  int queue = static_cast<int>(CoreLimits().runs_waiting);
  int history = static_cast<int>(CoreLimits().runs_kept);
  ConfigQuestion question;
};

// The flags, and where their values come from.
struct Configuration {
  Flags flags;
  std::vector<Setting> settings;
};

int Complain(const absl::Status& status) {
  std::cerr << "weft-coordinator: " << status.message() << "\n";
  const bool again = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  return again ? kTryAgain : kBadConfiguration;
}

constexpr int kMaxHistory = 2000;  // a list of them fits one message, beside those that wait

// The flags that a coordinator takes while it serves (CoreLimits).
const char* const kLimits[] = {"lease",    "grace",     "waiting", "preparing",
                               "progress", "finishing", "queue",   "history"};

CoreLimits LimitsOf(const Flags& flags) {
  constexpr int64_t kSecond = 1'000'000'000;
  CoreLimits core;
  core.lease_ns = flags.lease * kSecond;
  core.grace_ns = flags.grace * kSecond;
  core.waiting_ns = flags.waiting * kSecond;
  core.preparing_ns = flags.preparing * kSecond;
  core.progress_ns = flags.progress * kSecond;
  core.finishing_ns = flags.finishing * kSecond;
  core.runs_waiting = static_cast<size_t>(flags.queue);
  core.runs_kept = static_cast<size_t>(flags.history);
  return core;
}

// Logs one line a change, for an operator who looks at the log, and has a stall dumped, which the loss of a
// silent worker is too. Lines of workers are in their own logs.
CoordinatorObserver Observe(const DaemonLog* log, FlightRecorder* recorder) {
  CoordinatorObserver observer;
  observer.log = [log](const RunLogLine& line) {
    if (line.process < 0) log->Write(line.entry.severity, line.entry.text);
  };
  observer.worker = [log, recorder](const WorkerChange& w) {
    const LogEntry entry = LineOf(w);
    if (w.run == 0) log->Write(entry.severity, entry.text);  // else it is a line of that run
    if (w.kind == WorkerChange::Kind::kLost) recorder->Stalled(entry.text);
  };
  observer.stall = [recorder](const RunStall& s) {
    recorder->Stalled(absl::StrCat("run ", s.run, ": ", s.sentence));
  };
  observer.replanned = [log](const Replanned& r) {
    log->Info(absl::StrCat("run ", r.run, " goes on under ", r.plan->schedule, ", and no more under ",
                           r.former, ", from step ", r.step, " on: ", r.reason));
  };
  observer.refused = [log](const std::string& line) { log->Warning(line); };
  return observer;
}

CertificateWatch::Observer ObserveCertificates(const DaemonLog* log) {
  CertificateWatch::Observer observer;
  observer.changed = [log](const CertificateFolder& folder) {
    log->Info(absl::StrCat(
        "new certificates, valid until ",
        absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixSeconds(folder.expires), absl::UTCTimeZone()),
        " UTC, for new connections"));
  };
  observer.refused = [log](const absl::Status& why) {
    log->Warning(absl::StrCat("new certificates or tokens are not taken: ", why.message()));
  };
  return observer;
}

// Logs and records every event.
CoordinatorObserver Both(const CoordinatorObserver& log, RunRecords* records) {
  CoordinatorObserver both = log;
  both.run = [records](const RunInfo& run) { records->OnRun(run); };
  both.log = [log, records](const RunLogLine& line) {
    log.log(line);
    records->OnLog(line);
  };
  both.step = [records](const StepDone& step) { records->OnStep(step); };
  both.validation = [records](const Validation& validation) { records->OnValidation(validation); };
  both.jobs = [records](const JobsEnded& jobs) { records->OnJobs(jobs); };
  both.report = [records](const Report& report) { records->OnReport(report); };
  both.spans = [records](const Spans& spans) { records->OnSpans(spans); };
  both.spans_complete = [records](uint64_t run) { records->OnSpansComplete(run); };
  both.replanned = [log, records](const Replanned& replanned) {
    log.replanned(replanned);
    records->OnReplanned(replanned);
  };
  return both;
}

// Returns where the store is: as given, or in the folder that systemd made for the unit; "" for none.
std::string StorePlaceOf(const Flags& flags) {
  if (!flags.store.empty()) return flags.store;
  const char* state = std::getenv("STATE_DIRECTORY");
  if (state == nullptr || *state == '\0') return "";
  const std::string first = state;
  return first.substr(0, first.find(':')) + "/store";
}

// Waits for SIGINT or SIGTERM, which are blocked, at most for the time. Returns the signal; 0 for none.
int AwaitSignal(const sigset_t& signals, int64_t ns) {
  const timespec wait{ns / 1'000'000'000, ns % 1'000'000'000};
  const int signal = sigtimedwait(&signals, nullptr, &wait);
  return signal > 0 ? signal : 0;
}

absl::StatusOr<DaemonStore> OpenStore(const Flags& flags, const sigset_t& signals, const DaemonLog* log,
                                      Metrics* metrics, ServiceNotices* notices) {
  DaemonStoreOptions options;
  options.place = StorePlaceOf(flags);
  options.tls = flags.store_tls;
  options.insecure = flags.store_insecure || flags.security.insecure;
  options.name = absl::StrCat("pid ", getpid(), " on ", HostName());
  options.stand_by = [&signals, notices](int64_t ns) {
    notices->Ready("standing by: another coordinator leads");
    return AwaitSignal(signals, ns) == 0;
  };
  options.failed = [log](const absl::Status& failure) {
    const bool fenced = absl::IsAborted(failure) || absl::IsUnavailable(failure);
    log->Error(absl::StrCat(fenced ? "" : "the store cannot be written: ", failure.message()));
    std::_Exit(fenced ? kTryAgain : kBadConfiguration);
  };
  options.log = log;
  options.metrics = metrics;
  return OpenDaemonStore(options);
}

// Returns what tells the store that a run's folder is complete.
std::function<void(uint64_t)> RecordWritten(StoreWriter* writer) {
  if (writer == nullptr) return nullptr;
  return [writer](uint64_t run) {
    Records records;
    records.written.push_back(run);
    writer->Write(std::move(records), nullptr);
  };
}

// Lets the server record its runs, and ask for what is recorded.
void RecordRuns(RunRecords* records, const DaemonLog& log, FlightRecorder* recorder,
                CoordinatorServerOptions* options) {
  options->observer = Both(Observe(&log, recorder), records);
  options->claim = [records](uint64_t run, const SubmitRequest& request, const RunPlan& plan) {
    return records->Claim(run, request, plan);
  };
  options->claimed = WithKeptCheckpoint;
  options->release = [records](uint64_t run) { records->Release(run); };
  options->output_end = [records](uint64_t run) { return records->EndOf(run); };
  options->trace = [records](uint64_t run, const std::string& output) {
    return records->TraceOf(run, output);
  };
}

// Takes up the runs of the store. Unavailable if that must be tried again later; then nothing is stored.
absl::Status TakeUpRuns(DaemonStore* store, RunRecords* records, const DaemonLog* log,
                        const ServiceNotices& notices, CoordinatorServerOptions* options) {
  options->core.last_run = store->stored.last_run;
  constexpr int64_t kBetweenNotices = 1'000'000'000;
  int64_t told = MonotonicNow();
  const auto tell = [&](size_t taken, size_t runs) {
    if (MonotonicNow() - told < kBetweenNotices) return;
    told = MonotonicNow();
    notices.Starting(absl::StrCat("has taken up ", taken, " of the ", runs, " runs in its store"));
  };
  absl::StatusOr<RestoredRuns> restored =
      RestoreRuns(std::move(store->stored), options->planner, records, tell);
  if (!restored.ok()) return restored.status();
  if (!restored->runs.empty()) {
    log->Info(absl::StrCat("the store has ", restored->runs.size(),
                           restored->runs.size() == 1 ? " run, " : " runs, ", restored->live,
                           " of which go on"));
  }
  options->core.epoch = restored->records.epoch;
  options->restored = std::move(restored->runs);
  options->store = store->writer.get();
  store->writer->Write(std::move(restored->records), nullptr);
  return absl::OkStatus();
}

constexpr char kServesNot[] = "it does not serve yet, or is stopping";

// Pointers to the parts that serve; null before and afterwards.
struct Serving {
  std::atomic<CoordinatorServer*> server{nullptr};
  std::atomic<RunRecords*> records{nullptr};
};

StatusSources SourcesOf(const Serving& serving) {
  StatusSources sources;
  sources.look_around =
      [&serving](std::optional<uint64_t> run) -> absl::StatusOr<CoordinatorServer::Overview> {
    CoordinatorServer* server = serving.server;
    if (server == nullptr) return absl::UnavailableError(kServesNot);
    return server->LookAround(run);
  };
  sources.look_at = [&serving](uint64_t run) -> std::optional<RunRecords::Look> {
    RunRecords* records = serving.records;
    if (records == nullptr) return std::nullopt;
    return records->LookAt(run);
  };
  return sources;
}

// Returns what shows how much room the disk of a store in a folder has; null for any other place.
std::function<void()> ShowRoomOf(const std::string& place, Metrics* metrics) {
  if (place.empty() || IsEtcdPlace(place)) return nullptr;
  auto room = metrics->AddGauge("weft_store_free_bytes", "Bytes that are free on the disk of the store.");
  return [place, room]() mutable {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(place, error);
    if (!error) room.Set(static_cast<double>(space.available));
  };
}

// Serves metrics, health and the status page where the flags say so; null where they do not.
absl::StatusOr<std::unique_ptr<MetricsServer>> StartMetrics(const Flags& flags, Metrics* metrics,
                                                            const Serving& serving, const DaemonLog& log,
                                                            DaemonMetrics::Source source) {
  if (flags.metrics.empty()) return nullptr;
  const MetricsReaders readers = {flags.security, MayRead, ObserveCertificates(&log)};
  const auto healthy = [&serving] {
    const CoordinatorServer* server = serving.server;
    return server == nullptr ? std::string(kServesNot) : server->Problem();
  };
  const auto figures = std::make_shared<DaemonMetrics>(metrics, std::move(source), flags.security);
  auto leads = metrics->AddGauge("weft_coordinator_leads",
                                 "1 while this coordinator serves; 0 while it starts, or another one leads.");
  const auto refresh = [figures, leads, show_room = ShowRoomOf(StorePlaceOf(flags), metrics),
                        &serving]() mutable {
    figures->Refresh();
    leads.Set(serving.server == nullptr ? 0 : 1);
    if (show_room) show_room();
  };
  auto started = MetricsServer::Start(flags.metrics, metrics, readers, healthy, refresh,
                                      StatusPages(SourcesOf(serving)));
  if (started.ok()) log.Info(absl::StrCat("status page and metrics on port ", (*started)->port()));
  return started;
}

void LogListening(const Flags& flags, const CoordinatorServer& server, const DaemonLog& log) {
  for (const std::string& address : server.addresses()) log.Info(absl::StrCat("listening on ", address));
  if (!flags.security.tls.empty() && flags.roots.empty())
    log.Warning("without --roots a run may have its output folder wherever this process can write");
  if (!flags.security.insecure) return;
  log.Warning(
      "with --insecure everybody who reaches this coordinator may do everything, and nothing is encrypted");
}

// Returns what the flags alone decide.
CoordinatorServerOptions ServerOptionsOf(const Flags& flags, const DaemonLog* log) {
  CoordinatorServerOptions options;
  options.listen = flags.listen;
  options.security = flags.security;
  options.tokens = flags.tokens;
  options.certificates = ObserveCertificates(log);
  static_cast<CoreLimits&>(options.core) = LimitsOf(flags);
  options.planner = ReadRun;
  options.spin_microseconds = flags.spin_us;
  return options;
}

// Returns what says that a file of a run could not be written: in the run's log as well, while the server is
// there.
std::function<void(uint64_t run, const std::string& sentence)> SayOfRuns(const Serving& serving,
                                                                         const DaemonLog& log) {
  return [&serving, &log](uint64_t run, const std::string& sentence) {
    LogEntry entry = {LogSeverity::kWarning, 0, absl::StrCat("run ", run, ": ", sentence)};
    CoordinatorServer* const server = serving.server;
    server == nullptr ? log.Write(entry.severity, entry.text) : server->Log(run, std::move(entry));
  };
}

// The signals that the daemon waits for: those that end it; with SIGHUP, which reloads.
struct AwaitedSignals {
  sigset_t ending, all;
};

// Blocks them in this thread and in those that it starts later, so that only sigwait takes them.
AwaitedSignals BlockSignals() {
  AwaitedSignals signals;
  sigemptyset(&signals.ending);
  sigaddset(&signals.ending, SIGINT);
  sigaddset(&signals.ending, SIGTERM);
  signals.all = signals.ending;
  sigaddset(&signals.all, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals.all, nullptr);
  return signals;
}

// Calls `reload` at each SIGHUP, until a signal comes that ends the daemon. Returns that signal's name.
std::string AwaitEnd(const AwaitedSignals& signals, const std::function<void()>& reload) {
  int signal = 0;
  while (sigwait(&signals.all, &signal) == 0 && signal == SIGHUP) reload();
  return strsignal(signal);
}

// Takes what may change while the daemon serves from the configuration that was read again.
void TakeReload(const Configuration& at_start, const absl::StatusOr<Configuration>& now,
                CoordinatorServer* server, DaemonLog* log, LastReload* last) {
  const bool taken = Reload(now.status(), now.ok() ? now->settings : at_start.settings, at_start.settings,
                            {"certificates and tokens", {std::begin(kLimits), std::end(kLimits)}}, log);
  last->Note(taken);
  if (taken) server->SetLimits(LimitsOf(now->flags));
}

// Returns the folder of runs that were submitted without one.
std::string OutputRootOf(const Flags& flags) {
  return std::filesystem::absolute(flags.output_root).lexically_normal().string();
}

// Confines the files of runs to the roots, if there are any, and to the folder of outputs.
absl::Status ConfineToRoots(const Flags& flags) {
  if (flags.roots.empty()) return absl::OkStatus();
  std::vector<std::string> roots = flags.roots;
  roots.push_back(OutputRootOf(flags));
  if (const auto made = MakeFolders(roots.back()); !made.ok()) return made.status();
  return ConfineRunFiles(roots);
}

int Serve(const Configuration& configuration,
          const std::function<absl::StatusOr<Configuration>()>& read_again, ServiceNotices::Manager manager) {
  const Flags& flags = configuration.flags;
  const AwaitedSignals signals = BlockSignals();  // before any thread starts
  FlightRing ring;
  DaemonLog log("weft-coordinator", flags.log.least(), flags.log.line_format(), &ring);
  FlightRecorder recorder({"weft-coordinator", std::string(Release()), flags.log.flight_recorder}, ring, log);
  Metrics metrics;
  Serving serving;
  std::optional<ServiceNotices> notices(std::in_place, std::move(manager));
  // The manager's time-outs for starting and stopping watch over a process that does not serve.
  const auto problem = [&serving] {
    const CoordinatorServer* server = serving.server;
    return server == nullptr ? std::string() : server->Problem();
  };
  notices->Watch(problem);
  recorder.Watch(problem);
  LastReload last_reload;
  auto metrics_server = StartMetrics(flags, &metrics, serving, log,
                                     {&log, &last_reload, [&recorder] { return recorder.dumps(); }});
  if (!metrics_server.ok()) return Complain(metrics_server.status());
  absl::StatusOr<DaemonStore> store = OpenStore(flags, signals.ending, &log, &metrics, &*notices);
  if (absl::IsCancelled(store.status())) return kOk;
  if (!store.ok()) return Complain(store.status());
  StoreWriter* const writer = store->writer.get();
  CoordinatorServerOptions options = ServerOptionsOf(flags, &log);
  // The records exist before the server, which calls them.
  RunRecords records(OutputRootOf(flags), SayOfRuns(serving, log), RecordWritten(writer), store->takes_over);
  RecordRuns(&records, log, &recorder, &options);
  options.flight_ring = &ring;
  options.metrics = &metrics;
  options.unix_minus_monotonic_ns = store->unix_minus_monotonic_ns;
  if (writer != nullptr) {
    const absl::Status taken_up = TakeUpRuns(&*store, &records, &log, *notices, &options);
    if (!taken_up.ok()) return Complain(taken_up);
  }
  auto server = CoordinatorServer::Start(std::move(options));
  if (!server.ok()) return Complain(server.status());
  LogListening(flags, **server, log);
  serving.records = &records;
  serving.server = server->get();
  const std::string serves = absl::StrCat("listening on ", absl::StrJoin((*server)->addresses(), ", "));
  notices->Ready(serves);
  const std::string signal = AwaitEnd(signals, [&] {
    notices->Reloading();
    TakeReload(configuration, read_again(), server->get(), &log, &last_reload);
    notices->Ready(serves);
  });
  log.Info(absl::StrCat("stopping on ", signal));
  notices->Stopping(absl::StrCat("stopping on ", signal));
  pthread_sigmask(SIG_UNBLOCK, &signals.ending, nullptr);  // a second one ends the process at once
  serving.server = nullptr;
  serving.records = nullptr;
  (*server)->Stop(absl::StrCat("it got the signal ", signal));
  // These ask the server for its health.
  recorder.Watch(nullptr);
  metrics_server->reset();
  notices.reset();
  return kOk;
}

int BackUp(const Flags& flags) {
  const std::string folder = StorePlaceOf(flags);
  if (folder.empty()) {
    std::cerr << "weft-coordinator: --backup needs --store DIR\n";
    return kUsage;
  }
  if (IsEtcdPlace(folder)) {
    std::cerr
        << "weft-coordinator: --backup copies a store in a folder; etcdctl snapshot save copies etcd's\n";
    return kUsage;
  }
  const absl::Status copied = BackUpSqliteStore(folder, flags.backup);
  return copied.ok() ? static_cast<int>(kOk) : Complain(copied);
}

// Adds where runs are kept.
void AddStoreFlags(CLI::App& app, Flags& flags) {
  app.add_option(
         "--store", flags.store,
         "Folder in which runs are kept, so that a coordinator that is started again goes on with them "
         "(default: store in $STATE_DIRECTORY; without that they are kept in memory); or "
         "etcd://HOST:PORT[,HOST:PORT..][/PREFIX]: of several coordinators one leads, and the others stand "
         "by")
      ->type_name("DIR");
  CLI::Option* store_tls =
      app.add_option(
             "--store-tls", flags.store_tls,
             "Folder with ca.crt of etcd's authority, and tls.crt and tls.key if etcd wants a certificate")
          ->type_name("DIR");
  app.add_flag("--store-insecure", flags.store_insecure, "Allow etcd on another machine without TLS")
      ->excludes(store_tls);
  app.add_option("--backup", flags.backup,
                 "Copy the store to this file and exit; its coordinator may go on meanwhile")
      ->configurable(false)
      ->type_name("FILE");
}

// Adds the flags that SIGHUP takes anew (kLimits).
void AddLimitFlags(CLI::App& app, Flags& flags) {
  const auto seconds = CLI::Range(1, 1'000'000);
  app.add_option("--lease", flags.lease,
                 "Seconds of silence after which a worker loses its ranks, and its run goes on without it")
      ->check(CLI::Range(5, 1'000'000))
      ->capture_default_str();
  app.add_option("--grace", flags.grace,
                 "Seconds for a worker's broken session to come back, once the worker must have noticed (at "
                 "most 15 s)")
      ->check(seconds)
      ->capture_default_str();
  app.add_option("--waiting", flags.waiting, "Seconds that a run waits for worker processes to connect")
      ->check(seconds)
      ->capture_default_str();
  app.add_option("--preparing", flags.preparing, "Seconds for workers to prepare a run")
      ->check(seconds)
      ->capture_default_str();
  app.add_option("--progress", flags.progress,
                 "Seconds without any job that runs or is done before a run begins again")
      ->check(seconds)
      ->capture_default_str();
  app.add_option("--finishing", flags.finishing, "Seconds for workers to save and report after the last job")
      ->check(seconds)
      ->capture_default_str();
  app.add_option("--queue", flags.queue,
                 "Most runs that wait or run; further ones are refused until one of them has ended")
      ->check(CLI::Range(1, static_cast<int>(CoreLimits().runs_waiting)))
      ->capture_default_str();
  app.add_option(
         "--history", flags.history,
         "Most ended runs that are still listed; older ones are forgotten, and their output folders stay")
      ->check(CLI::Range(1, kMaxHistory))
      ->capture_default_str();
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen,
                 absl::StrCat("Address for workers and clients: unix:PATH or HOST:PORT; may be repeated, or "
                              "several with commas (default ",
                              kDefaultCoordinator, ", as of the clients)"))
      ->take_all()
      ->delimiter(',');
  app.add_option(
      "--metrics", flags.metrics,
      "Serve a status page for browsers, /metrics and /healthz here: HOST:PORT; port 0 picks a free one");
  app.add_option("--output-root", flags.output_root,
                 "Folder in which a run gets one of its own, NAME-RUN, if it was submitted without --out "
                 "(default: out "
                 "in the working directory); the workers must see it under the same path")
      ->check([](const std::string& path) { return std::string(CheckPathText(path).message()); })
      ->type_name("DIR");
  app.add_option("--roots", flags.roots,
                 "Folders beneath which a run may have its output folder, as in /data,/runs, beside "
                 "--output-root; default: anywhere")
      ->delimiter(',')
      ->type_name("DIR");
  AddStoreFlags(app, flags);
  AddSecurityFlags(app, flags.security);
  app.add_option("--tokens", flags.tokens,
                 "File of users' tokens, which do instead of certificates; weft certs token writes it")
      ->type_name("FILE");
  AddLimitFlags(app, flags);
  app.add_option(
         "--spin-us", flags.spin_us,
         "Microseconds that the coordinator polls behind a message before it sleeps: answers come sooner "
         "where it has a processor of its own")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  AddLogFlags(app, flags.log);
}

// Reads the configuration: built-in values, the file, the environment, the command line. Cancelled where the
// program has answered by that and ends well; InvalidArgument for wrong usage, FailedPrecondition for a wrong
// file.
absl::StatusOr<Configuration> ReadConfiguration(int argc, const char* const* argv) {
  CLI::App app("Coordinates training runs: accepts them, and grants their jobs to worker processes.",
               "weft-coordinator");
  app.footer(
      "Examples:\n"
      "  weft-coordinator --listen unix:/run/weft/coordinator.sock\n"
      "  weft-coordinator --listen 127.0.0.1:7070 --listen unix:/run/weft/coordinator.sock --metrics "
      "127.0.0.1:9100\n"
      "  weft-coordinator --store /var/lib/weft/store --backup /backup/weft.db\n"
      "  weft-coordinator --store etcd://10.0.0.1:2379,10.0.0.2:2379/weft --output-root /shared/runs\n"
      "Each flag has a variable (WEFT_LEASE for --lease) and a key in the file of --config (lease: 20).\n"
      "Exit codes: 0 stopped by a signal, 2 wrong usage, 75 an address or the store is in use, "
      "another coordinator leads, the output root is not mounted, or there are no threads left, 78 an "
      "address "
      "is wrong or refused, the "
      "configuration file is wrong, or the store is damaged or cannot be written.");
  Configuration configuration;
  Flags& flags = configuration.flags;
  AddFlags(app, flags);
  app.set_version_flag("--version", absl::StrCat("weft-coordinator ", Release()));
  AddConfigQuestion(app, flags.question);
  const Settings settings(app, {"/etc/weft/coordinator.yaml", UnknownName});
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // help and version
      app.exit(e);
      return absl::CancelledError("");
    }
    if (const auto blame = settings.Blame(e); blame.has_value()) return absl::FailedPreconditionError(*blame);
    return absl::InvalidArgumentError(
        absl::StrCat(e.what(), "\nweft-coordinator: see weft-coordinator --help"));
  }
  // The folder that is not given depends on the working directory.
  if (const absl::Status text = CheckPathText(flags.output_root); !text.ok())
    return absl::FailedPreconditionError(absl::StrCat("--output-root: ", text.message()));
  if (const auto answer = AnswerTo(flags.question, settings); answer.has_value()) {
    std::cout << *answer;
    return absl::CancelledError("");
  }
  configuration.settings = settings.List();
  return configuration;
}

int Main(int argc, char** argv) {
  const auto read = [argc, argv] { return ReadConfiguration(argc, argv); };
  const absl::StatusOr<Configuration> configuration = read();
  if (absl::IsCancelled(configuration.status())) return kOk;
  if (!configuration.ok()) {
    std::cerr << "weft-coordinator: " << configuration.status().message() << "\n";
    return absl::IsInvalidArgument(configuration.status()) ? kUsage : kBadConfiguration;
  }
  if (!configuration->flags.backup.empty()) return BackUp(configuration->flags);
  if (absl::Status confined = ConfineToRoots(configuration->flags); !confined.ok()) return Complain(confined);
  auto manager = ServiceNotices::TakeFromEnvironment();
  if (!manager.ok()) return Complain(manager.status());
  signal(SIGPIPE, SIG_IGN);
  RaiseOpenFileLimit();
  constexpr int kThreads = 16;  // its own and gRPC's
  if (absl::Status threads = CheckThreads(kThreads); !threads.ok()) return Complain(threads);
  return Serve(*configuration, read, *std::move(manager));
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
