// Runs weft-worker: a long-running process that computes the jobs of its ranks.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/clock_name.h"
#include "base/host_name.h"
#include "base/log/daemon_log.h"
#include "base/log/flight_recorder.h"
#include "base/log/flight_ring.h"
#include "base/log/log_flags.h"
#include "base/net/port_range.h"
#include "base/net/security_flags.h"
#include "base/open_files.h"
#include "base/release.h"
#include "base/run_files.h"
#include "base/service/service_notices.h"
#include "base/settings/reload.h"
#include "base/settings/settings.h"
#include "base/threads.h"
#include "proto/session/access.h"
#include "proto/wire/session_stream.h"
#include "run/plugin_spec.h"
#include "run/unknown_name.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/device_library.h"
#include "worker/shell/compute/plugin_permission.h"
#include "worker/shell/exit_code.h"
#include "worker/shell/memory/communicator.h"
#include "worker/shell/metrics/gpu_monitor.h"
#include "worker/shell/metrics/worker_metrics.h"
#include "worker/shell/offline_tasks.h"
#include "worker/shell/run_slots.h"
#include "worker/shell/signal_stop.h"
#include "worker/shell/torch/torch_context.h"
#include "worker/shell/transport/ucx_messenger.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {
namespace {

struct Flags {
  std::string coordinator, name, pool, node, metrics, device = "cpu";
  SecurityFlags security;
  bool graphs = true, nvtx = false;
  bool owned = false;
  LogFlags log;
  int process = -1, runs = 1;
  int spin_us = -1;
  std::string data_network = "auto", data_plane = "auto";
  std::vector<std::string> roots;
  std::vector<std::string> plugins;  // hashes of those that it may load
  std::string python = "python3";    // program that runs those that are Python
  PortRange data_ports;
  int connect_timeout = 30, reconnect_timeout = 300, joining = 290, link_timeout = 120, drain = 25;
  std::string check;
  std::string reference, out;
  std::string evaluate, checkpoint;
  int64_t samples = 0;
  std::string generate, request;
  ConfigQuestion question;
};

// The flags, and where their values come from.
struct Configuration {
  Flags flags;
  std::vector<Setting> settings;
};

// Returns the exit code of a worker that served. It is 78 only for errors that another start does not cure.
int CodeOfSession(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return kUnreachable;
    case absl::StatusCode::kAlreadyExists:
      return kTryAgain;
    case absl::StatusCode::kFailedPrecondition:
      return kBadConfiguration;
    default:
      return CodeOf(status);
  }
}

absl::StatusOr<LoadedDevice> LoadFlaggedDevice(const Flags& flags) {
  const absl::StatusOr<DeviceChoice> choice = ParseDeviceChoice(flags.device);
  if (!choice.ok()) return choice.status();
  DeviceOptions options;
  options.process = std::max(flags.process, 0);
  options.graphs = flags.graphs;
  options.mark_jobs = flags.nvtx;
  return LoadDevice(*choice, options, DefaultDeviceSearch());
}

// Returns the libraries whose versions count where workers of several machines train together.
std::string Libraries() {
  return absl::StrCat("LibTorch ", TorchVersion(), ", UCX ", UcxVersion(), ", gRPC ", GrpcVersion());
}

Hello HelloOf(const Flags& flags, Device& device) {
  Hello hello;
  hello.host = HostName();
  hello.pid = getpid();
  hello.process = flags.process;
  hello.worker = flags.name.empty() ? absl::StrCat("worker-", hello.pid) : flags.name;
  hello.pool = flags.pool;
  hello.node = flags.node;
  hello.tells_spans = true;
  hello.clock = ClockName();
  hello.release = std::string(Release());
  hello.libraries = Libraries();
  hello.device = std::string(device.name().substr(0, device.name().find(':')));
  hello.device_id = std::string(device.uuid());
  if (CommunicationLibrary* library = device.communication()) hello.reduction_library = library->name();
  return hello;
}

// Returns true if tensors between machines travel over TLS.
bool SecuresDataPlane(const Flags& flags) {
  return flags.data_plane == "tls" || (flags.data_plane == "auto" && !flags.security.tls.empty());
}

bool IsWorker(const std::vector<std::string>& uris) {
  const absl::StatusOr<Identity> identity = IdentityOf(uris);
  return identity.ok() && identity->role == Role::kWorker;
}

absl::StatusOr<UcxOptions> TransportOptionsOf(const Flags& flags) {
  UcxOptions options = UcxOptionsFromEnvironment();
  options.link_timeout_ns = int64_t{flags.link_timeout} * 1'000'000'000;
  options.ports = flags.data_ports;
  if (!SecuresDataPlane(flags)) {
    ChooseNetwork(flags.data_network, flags.coordinator, &options);
    return options;
  }
  if (flags.security.tls.empty()) {
    return absl::FailedPreconditionError(
        "--data-plane tls needs certificates: give --tls DIR, with a folder as weft certs init makes it");
  }
  TlsNetwork secured;
  secured.certificates = flags.security.tls;
  secured.trusts = IsWorker;
  ChooseTlsNetwork(flags.data_network, flags.coordinator, std::move(secured), &options);
  return options;
}

MetricsReaders MetricsReadersOf(const Flags& flags, const DaemonLog* log) {
  MetricsReaders readers = {flags.security, MayRead, {}};
  readers.certificates.refused = [log](const absl::Status& why) {
    log->Warning(absl::StrCat("new certificates for metrics are not taken: ", why.message()));
  };
  return readers;
}

RunSlot::Options SlotOptionsOf(const Flags& flags, UcxOptions transport, GpuMonitor* gpu, Device& device,
                               FlightRecorder* recorder) {
  RunSlot::Options options;
  options.hello = HelloOf(flags, device);
  options.session = {flags.coordinator, flags.security, int64_t{flags.connect_timeout} * 1'000'000'000,
                     int64_t{flags.reconnect_timeout} * 1'000'000'000};
  options.transport = std::move(transport);
  options.loop.spin_microseconds = flags.spin_us;
  options.loop.join_timeout_ns = int64_t{flags.joining} * 1'000'000'000;
  if (gpu != nullptr) options.loop.gpu_figures = [gpu] { return gpu->Latest(); };
  options.recorder = recorder;
  options.loop.flight_ring = &recorder->ring();
  options.loop.stalled = [recorder](const std::string& why) { recorder->Stalled(why); };
  options.renews = !flags.owned;  // one that weft train owns is started again by it
  return options;
}

int Serve(const Flags& flags, DaemonLog& log, const LastReload* last_reload, FlightRecorder& recorder,
          std::unique_ptr<DeviceBackend> backend, SignalStop& signals, ServiceNotices::Manager manager) {
  absl::StatusOr<UcxOptions> transport = TransportOptionsOf(flags);
  if (!transport.ok()) return Complain(transport.status(), kBadConfiguration);
  if (backend != nullptr) UseDevice(backend->name(), backend->uuid(), &backend->memory(), &*transport);
  const std::unique_ptr<GpuMonitor> gpu = backend == nullptr ? nullptr : GpuMonitor::Open(backend->uuid());
  const std::unique_ptr<Device> device =
      backend == nullptr ? CreateCpuDevice() : CreateTorchDevice(std::move(backend));
  device->PrepareThread();
  const auto opened = RunSlots::Open(
      flags.runs, SlotOptionsOf(flags, *std::move(transport), gpu.get(), *device, &recorder), *device, log);
  if (!opened.ok()) {
    const bool configured = absl::IsFailedPrecondition(opened.status());
    return Complain(opened.status(), configured ? kBadConfiguration : kFailed);
  }
  RunSlots& slots = **opened;
  absl::StatusOr<std::unique_ptr<WorkerMetrics>> metrics =
      WorkerMetrics::Start(flags.metrics, MetricsReadersOf(flags, &log),
                           {[&slots] { return slots.Snapshot(); },
                            [&slots] { return slots.Problem(); },
                            {&log, last_reload, [&recorder] { return recorder.dumps(); }}},
                           gpu.get());
  if (!metrics.ok()) return Complain(metrics.status(), kBadConfiguration);
  if (*metrics != nullptr)
    std::cerr << "weft-worker: note: metrics at http://" << (*metrics)->address() << "/metrics\n";
  slots.Register();
  ServiceNotices notices(std::move(manager));
  notices.Ready(absl::StrCat("for the coordinator at ", flags.coordinator));
  notices.Watch([&slots] { return slots.Problem(); });
  recorder.Watch([&slots] { return slots.Stall(); });
  // The owner of an owned process wants its end at once.
  signals.Watch(slots.all(), flags.owned ? 0 : flags.drain);
  const absl::Status status = slots.Serve([&signals] { signals.StopAll(); });
  notices.Stopping(status.ok() ? "it was stopped" : status.message());
  signals.Unwatch();
  recorder.Watch(nullptr);
  metrics->reset();
  slots.Close();
  if (signals.taken() != 0) log.Info(absl::StrCat("stopping on SIG", sigabbrev_np(signals.taken())));
  const std::string reason = slots.ReasonToEnd();
  if (status.ok() && signals.taken() == 0 && !reason.empty() && !flags.owned) {
    return Complain(
        absl::UnavailableError(absl::StrCat("the coordinator at ", flags.coordinator,
                                            " ended this worker: ", reason, "; start this worker again")),
        kUnreachable);
  }
  return status.ok() ? kOk : Complain(status, CodeOfSession(status));
}

void AddDeviceFlags(CLI::App& app, Flags& flags) {
  app.add_option(
         "--device", flags.device,
         "Device that computes: cpu (default), cuda, cuda:1, auto (a GPU if there is one that works, else "
         "the CPU), or KIND[:INDEX] of a library libweft_KIND.so")
      ->check([](const std::string& text) {
        const auto choice = ParseDeviceChoice(text);
        return choice.ok() ? std::string() : std::string(choice.status().message());
      })
      ->type_name("DEVICE");
  app.add_flag("!--no-graphs", flags.graphs, "Give a GPU single kernels, not whole passes as CUDA graphs");
  app.add_flag("--nvtx", flags.nvtx, "Mark each job for a GPU's profiler (Nsight Systems)");
}

void AddDataPlaneFlags(CLI::App& app, Flags& flags) {
  app.add_option(
         "--data-network", flags.data_network,
         "Network of the data plane: local (this machine only, no listening socket), all, or interfaces "
         "as in eth0,eth1. auto, the default: local where the coordinator is reached by a unix socket or "
         "loopback, else the interface by which it is reached")
      ->type_name("NETWORK");
  app.add_option(
         "--data-plane", flags.data_plane,
         "How tensors travel between machines: tls, with the certificates of --tls; ucx, by TCP or RDMA, "
         "neither encrypted nor authenticated. auto, the default: tls where --tls is given")
      ->check(CLI::IsMember({"auto", "tls", "ucx"}));
  app.add_option_function<std::string>(
         "--data-ports",
         [&flags](const std::string& text) {
           const auto ports = ParsePorts(text);
           if (!ports.has_value())
             throw CLI::ValidationError(
                 "--data-ports",
                 "takes a port, as 20000, or the first and the last of several, as 20000-20100");
           flags.data_ports = *ports;
         },
         "Ports on which the data plane may listen, for the rules of a firewall, as in 20000-20100; or one "
         "port, as 20000; default: any")
      ->type_name("FIRST-LAST");
  app.add_option("--link-timeout", flags.link_timeout,
                 "Seconds after which a data link is given up on which a tensor is awaited and that carries "
                 "nothing; an outage of up to half of it heals (default 120)")
      ->check(CLI::Range(10, 86400));
}

// Returns which plug-ins this process may load: those of its configuration, or, where a user has started it
// for a run of their own, those that the run names. The latter reads no settings, but the user's Python.
PluginPermission PluginPermissionOf(const Flags& flags) {
  PluginPermission permission;
  permission.any = flags.owned || flags.coordinator.empty();
  permission.hashes.insert(flags.plugins.begin(), flags.plugins.end());
  const char* const python = permission.any ? std::getenv("WEFT_PYTHON") : nullptr;
  permission.python = python != nullptr ? python : flags.python;
  return permission;
}

// Confines the files of runs to the roots, if there are any.
absl::Status ConfineToRoots(const Flags& flags, const DaemonLog& log) {
  if (flags.roots.empty() && !flags.security.tls.empty() && !flags.owned)
    log.Warning("without --roots a run may name any file that this process can open");
  return ConfineRunFiles(flags.roots);
}

// Adds the flags that say which files and which code of runs a worker takes.
void AddFileFlags(CLI::App& app, Flags& flags) {
  app.add_option("--roots", flags.roots,
                 "Folders beneath which a run's files must be, as in /data,/runs: its data, weights, "
                 "checkpoints, exported model, plug-ins and output folder; default: anywhere")
      ->delimiter(',')
      ->type_name("DIR");
  app.add_option("--plugins", flags.plugins,
                 "Plug-ins that runs may name, libraries or Python with operations of exported models: the "
                 "SHA-256 of "
                 "each, as in 9f86..,c0ff..; default: none")
      ->delimiter(',')
      ->check([](const std::string& text) {
        return IsSha256(text) ? std::string() : "takes the 64 digits that sha256sum prints, not " + text;
      })
      ->type_name("SHA256");
  app.add_option("--python", flags.python,
                 "Program whose Python runs plug-ins that are Python; it must have the workers' PyTorch "
                 "(default python3)")
      ->type_name("PROGRAM");
}

// Adds the flags of a worker that serves a coordinator.
CLI::Option* AddServiceFlags(CLI::App& app, Flags& flags) {
  auto* coordinator = app.add_option("--coordinator", flags.coordinator,
                                     "Address of the coordinator: unix:PATH or HOST:PORT; several: A,B");
  AddSecurityFlags(app, flags.security);
  app.add_option("--name", flags.name, "Name in messages and listings; letters a-z, digits and '-'");
  app.add_option(
         "--pool", flags.pool,
         "Serve only runs that are submitted with this --pool, and no others; letters a-z, digits and '-'")
      ->type_name("NAME");
  app.add_option("--node", flags.node,
                 "Machine that it is on, where that is not its host name, as in a container: workers of one "
                 "node get neighbouring ranks")
      ->type_name("NAME");
  app.add_option("--runs", flags.runs,
                 "Serve so many runs at a time, each as a worker with a name of its own: NAME, NAME-2, .. "
                 "(default 1)")
      ->check(CLI::Range(1, 64));
  app.add_flag("--owned", flags.owned, "Of weft train, which starts and ends this process")
      ->configurable(false)
      ->group("");
  AddLogFlags(app, flags.log);
  app.add_option("--process", flags.process, "Wanted process number within a run; -1 for any")
      ->check(CLI::Range(-1, 1 << 20));
  app.add_option("--metrics", flags.metrics, "Serve /metrics here: HOST:PORT; port 0 picks a free one");
  app.add_option("--spin-us", flags.spin_us,
                 "Microseconds that an idle rank polls before it blocks; -1 chooses")
      ->check(CLI::Range(-1, 1'000'000));
  app.add_option("--connect-timeout", flags.connect_timeout,
                 "Seconds without a connection to the coordinator, at first, after which the worker gives up "
                 "(default 30)")
      ->check(CLI::Range(1, 86400));
  app.add_option("--reconnect-timeout", flags.reconnect_timeout,
                 "Likewise once there was a connection: as long as a coordinator takes to be started again "
                 "(default 300)")
      ->check(CLI::Range(1, 86400));
  app.add_option("--joining", flags.joining,
                 "Seconds from a run's beginning until its GPUs' collectives are complete (default 290, a "
                 "little less than the coordinator's --preparing)")
      ->check(CLI::Range(1, 86400));
  app.add_option(
         "--drain", flags.drain,
         "Seconds that a worker stays after SIGTERM or SIGINT, until its run goes on elsewhere without "
         "loss; another signal ends them (default 25; 0: it leaves at once)")
      ->check(CLI::Range(0, 86400));
  AddFileFlags(app, flags);
  AddDataPlaneFlags(app, flags);
  return coordinator;
}

// Adds the flags of a process that does one thing and exits. They exclude `coordinator`, and one another.
void AddTaskFlags(CLI::App& app, Flags& flags, CLI::Option* coordinator) {
  auto* reference = app.add_option("--reference", flags.reference,
                                   "Train this specification (JSON) as one plain loop and exit");
  app.add_option("--out", flags.out, "Folder for the checkpoints of --reference")->needs(reference);
  coordinator->excludes(reference);
  auto* check = app.add_option("--check", flags.check,
                               "Check this specification's (JSON) exported model against LibTorch and exit");
  check->excludes(coordinator)->excludes(reference);
  auto* evaluate = app.add_option("--evaluate", flags.evaluate,
                                  "Evaluate a checkpoint on this specification's (JSON) data and exit");
  auto* generate =
      app.add_option("--generate", flags.generate,
                     "Write tokens with a checkpoint of this specification's (JSON) model and exit");
  app.add_option("--request", flags.request, "Of --generate: prompt and sampling (JSON)")->needs(generate);
  app.add_option("--checkpoint", flags.checkpoint, "Folder of the checkpoint of --evaluate and --generate");
  app.add_option("--samples", flags.samples, "Of --evaluate: the first so many samples; 0 for all")
      ->needs(evaluate)
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  evaluate->excludes(coordinator)->excludes(reference);
  generate->excludes(coordinator)->excludes(reference)->excludes(evaluate);
  for (CLI::Option* option : {reference, check, evaluate, generate}) option->configurable(false);
  for (const char* name : {"--out", "--request", "--checkpoint", "--samples"})
    app.get_option(name)->configurable(false);
}

// Returns true if another process started this one for a task, and has said all by flags: neither file nor
// variables count then.
bool IsTold(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view flag = absl::string_view(argv[i]).substr(0, absl::string_view(argv[i]).find('='));
    for (const char* told : {"--owned", "--reference", "--check", "--evaluate", "--generate"}) {
      if (flag == told) return true;
    }
  }
  return false;
}

// Reads the configuration: built-in values, the file, the environment, the command line. Cancelled where the
// program has answered by that and ends well; InvalidArgument for wrong usage, FailedPrecondition for a wrong
// file.
absl::StatusOr<Configuration> ReadConfiguration(int argc, const char* const* argv) {
  CLI::App app("Computes jobs of training runs for a Weft coordinator.", "weft-worker");
  app.footer(
      "Examples:\n"
      "  weft-worker --coordinator unix:/run/weft/coordinator.sock\n"
      "  weft-worker --coordinator 127.0.0.1:7070 --metrics 127.0.0.1:9101\n"
      "Environment: UCX_TLS, UCX_NET_DEVICES choose the networks of the data plane, before --data-network;\n"
      "WEFT_DEVICE_PATH=A:B are folders in which libraries of devices are looked for first.");
  Configuration configuration;
  Flags& flags = configuration.flags;
  CLI::Option* coordinator = AddServiceFlags(app, flags);
  AddDeviceFlags(app, flags);
  AddTaskFlags(app, flags, coordinator);
  app.set_version_flag("--version",
                       [] { return absl::StrCat("weft-worker ", Release(), "\n", Libraries()); });
  AddConfigQuestion(app, flags.question);
  std::optional<Settings> settings;
  if (!IsTold(argc, argv)) settings.emplace(app, SettingsOptions{"/etc/weft/worker.yaml", UnknownName});
  try {
    app.parse(argc, argv);
    const bool asked = flags.question.check || !flags.question.show.empty();
    const bool reads = !flags.evaluate.empty() || !flags.generate.empty();
    if (flags.coordinator.empty() && flags.reference.empty() && flags.check.empty() && !reads && !asked) {
      throw CLI::RequiredError("--coordinator");
    }
    if (reads && flags.checkpoint.empty()) throw CLI::RequiredError("--checkpoint");
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // help and version
      app.exit(e);
      return absl::CancelledError("");
    }
    const auto blame = settings.has_value() ? settings->Blame(e) : std::nullopt;
    if (blame.has_value()) return absl::FailedPreconditionError(*blame);
    return absl::InvalidArgumentError(absl::StrCat(e.what(), "\nRun with --help for more information."));
  }
  if (!settings.has_value()) return configuration;
  if (const auto answer = AnswerTo(flags.question, *settings); answer.has_value()) {
    std::cout << *answer;
    return absl::CancelledError("");
  }
  configuration.settings = settings->List();
  return configuration;
}

// Does the task of a process without a coordinator.
int ComputeAlone(const Flags& flags, DeviceBackend* backend) {
  if (!flags.reference.empty()) return TrainReference(flags.reference, flags.out, backend);
  if (!flags.evaluate.empty())
    return EvaluateCheckpoint(flags.evaluate, flags.checkpoint, flags.samples, backend);
  return GenerateText(flags.generate, flags.checkpoint, flags.request, backend);
}

int Main(int argc, char** argv) {
  const std::function<absl::StatusOr<Configuration>()> read = [argc, argv] {
    return ReadConfiguration(argc, argv);
  };
  const absl::StatusOr<Configuration> configuration = read();
  if (absl::IsCancelled(configuration.status())) return kOk;
  if (!configuration.ok()) {
    std::cerr << (absl::IsInvalidArgument(configuration.status()) ? "" : "weft-worker: ")
              << configuration.status().message() << "\n";
    return absl::IsInvalidArgument(configuration.status()) ? kUsage : kBadConfiguration;
  }
  const Flags& flags = configuration->flags;
  auto manager = ServiceNotices::TakeFromEnvironment();
  if (!manager.ok()) return Complain(manager.status(), kBadConfiguration);
  if (flags.owned) manager->socket.clear();  // its owner speaks to the manager
  signal(SIGPIPE, SIG_IGN);
  RaiseOpenFileLimit();
  // Threads of the worker itself, of gRPC and UCX, and at least one of each rank.
  constexpr int kThreads = 16;
  const absl::Status threads =
      flags.coordinator.empty() ? absl::OkStatus() : CheckThreads(kThreads * flags.runs);
  if (!threads.ok()) return Complain(threads, CodeOf(threads));
  // A device's driver may start threads, which take over which signals are blocked.
  std::optional<SignalStop> signals;
  // If another process owns this one, that process reports for it, and hears SIGHUP.
  FlightRing ring;
  DaemonLog log("weft-worker", flags.owned ? LogSeverity::kError : flags.log.least(),
                flags.owned ? LogFormat::kText : flags.log.line_format(), &ring);
  std::optional<FlightRecorder> recorder;
  LastReload last_reload;
  std::function<void()> reload;
  if (!flags.owned) {
    reload = [&] {
      const auto now = read();
      const bool taken = Reload(now.status(), now.ok() ? now->settings : configuration->settings,
                                configuration->settings, {"certificates", {"drain"}}, &log);
      last_reload.Note(taken);
      if (taken) signals->SetPatience(now->flags.drain);
    };
  }
  if (!flags.coordinator.empty()) {
    signals.emplace(reload);
    recorder.emplace(
        FlightRecorder::Options{"weft-worker", std::string(Release()), flags.log.flight_recorder}, ring, log);
  }
  AllowPlugins(PluginPermissionOf(flags));
  if (absl::Status confined = ConfineToRoots(flags, log); !confined.ok())
    return Complain(confined, kBadConfiguration);
  if (!flags.check.empty()) return CheckModel(flags.check);
  // The device is loaded before anything uses LibTorch.
  absl::StatusOr<LoadedDevice> device = LoadFlaggedDevice(flags);
  if (!device.ok()) return Complain(device.status(), kBadConfiguration);
  if (!device->announcement.empty()) std::cerr << "weft-worker: " << device->announcement << std::endl;
  if (flags.coordinator.empty()) return ComputeAlone(flags, device->backend.get());
  return Serve(flags, log, reload ? &last_reload : nullptr, *recorder, std::move(device->backend), *signals,
               *std::move(manager));
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  const int code = weft::Main(argc, argv);
#ifdef WEFT_QUICK_EXIT
  // LibTorch takes 0.13 s to remove its operators one by one, for a process that has nothing left to do.
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);
#else
  return code;
#endif
}
