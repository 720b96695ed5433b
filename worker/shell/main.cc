// Runs weft-worker: a long-running process that computes the jobs of its ranks.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/log/daemon_log.h"
#include "base/open_files.h"
#include "base/threads.h"
#include "nlohmann/json.hpp"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/device_library.h"
#include "worker/shell/loop/run_shape.h"
#include "worker/shell/loop/session_link.h"
#include "worker/shell/loop/worker_loop.h"
#include "worker/shell/memory/collectives.h"
#include "worker/shell/metrics/gpu_monitor.h"
#include "worker/shell/metrics/worker_metrics.h"
#include "worker/shell/reference/evaluate.h"
#include "worker/shell/reference/generate.h"
#include "worker/shell/reference/reference.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {
namespace {

// The exit codes of DESIGN.md section 6.
enum ExitCode {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 69,
  kTryAgain = 75,
  kDenied = 77,
  kBadConfiguration = 78,
  kInterrupted = 130
};

struct Flags {
  std::string coordinator, name, metrics, device = "cpu";
  bool graphs = true, nvtx = false;
  bool owned = false;
  LogLevel log_level = LogLevel::kInfo;
  int process = -1;
  int spin_us = -1;
  std::string data_network = "auto";
  int connect_timeout = 30, joining = 290, link_timeout = 120;
  std::string reference, out;
  std::string evaluate, checkpoint;
  int64_t samples = 0;
  std::string generate, request;
};

int Complain(const absl::Status& status, int code) {
  std::cerr << "weft-worker: " << status.message() << "\n";
  return code;
}

int CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return kUnreachable;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return kBadConfiguration;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kDenied;
    case absl::StatusCode::kResourceExhausted:
      return kTryAgain;
    default:
      return kFailed;
  }
}

// Returns the exit code of a worker that served. It is 78 only for errors that another start does not cure: a
// coordinator that was restarted does not know the session, and takes a new one.
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

absl::StatusOr<RunSpec> ReadSpecification(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::stringstream text;
  text << file.rdbuf();
  return ParseRunSpecText(text.str());
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

// Evaluates a checkpoint. Each line of output is the result so far; the last has all samples.
int EvaluateCheckpoint(const Flags& flags, DeviceBackend* backend) {
  const absl::StatusOr<RunSpec> spec = ReadSpecification(flags.evaluate);
  if (!spec.ok()) return Complain(spec.status(), kBadConfiguration);
  const auto print = [](const Evaluation& e) {
    std::cout << nlohmann::json{{"samples", e.samples}, {"all_samples", e.all_samples},
                                {"loss", e.loss()},     {"predictions", e.predictions},
                                {"correct", e.correct}, {"accuracy", e.accuracy()},
                                {"version", e.version}}
                     .dump()
              << std::endl;
    return std::cout.good();
  };
  const absl::StatusOr<Evaluation> result = Evaluate(*spec, flags.checkpoint, print, backend, flags.samples);
  if (result.ok()) return kOk;
  // A damaged checkpoint is as bad a configuration as damaged data.
  const bool damaged = absl::IsDataLoss(result.status());
  return Complain(result.status(), damaged ? kBadConfiguration : CodeOf(result.status()));
}

// Parses the request of `weft generate`: {"prompt": [82, 79], "tokens": 200, "temperature": 0.8, "top_k": 0,
// "seed": 1}.
absl::StatusOr<GenerateRequest> ParseRequest(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  GenerateRequest request;
  try {
    request.prompt = json.at("prompt").get<std::vector<int64_t>>();
    request.tokens = json.at("tokens").get<int>();
    request.sampling.temperature = json.at("temperature").get<double>();
    request.sampling.top_k = json.at("top_k").get<int>();
    request.sampling.seed = json.at("seed").get<uint64_t>();
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("--request: ", e.what()));
  }
  if (!(request.sampling.temperature >= 0) || request.sampling.top_k < 0)
    return absl::InvalidArgumentError("--request: temperature and top_k must not be below 0");
  return request;
}

// Generates text. Each line of output is one new token.
int GenerateText(const Flags& flags, DeviceBackend* backend) {
  const absl::StatusOr<RunSpec> spec = ReadSpecification(flags.generate);
  if (!spec.ok()) return Complain(spec.status(), kBadConfiguration);
  const absl::StatusOr<GenerateRequest> request = ParseRequest(flags.request);
  if (!request.ok()) return Complain(request.status(), kUsage);
  const auto print = [](int64_t token) {
    std::cout << "{\"token\":" << token << "}" << std::endl;
    return std::cout.good();
  };
  const absl::Status status = Generate(*spec, flags.checkpoint, *request, print, backend);
  if (status.ok()) return kOk;
  return Complain(status, absl::IsDataLoss(status) ? kBadConfiguration : CodeOf(status));
}

volatile sig_atomic_t stop_reference = 0;

int TrainReference(const Flags& flags, DeviceBackend* backend) {
  const absl::StatusOr<RunSpec> spec = ReadSpecification(flags.reference);
  if (!spec.ok()) return Complain(spec.status(), kBadConfiguration);
  const auto print = [](const ReferenceStep& s) {
    nlohmann::json line = {{"step", s.step}, {"loss", s.loss}, {"seconds", s.seconds}};
    if (s.gradient_norm.has_value()) line["gradient_norm"] = *s.gradient_norm;
    if (s.skipped) line["skipped"] = true;
    std::cout << line.dump() << std::endl;
    return std::cout.good();
  };
  // A signal ends it after the step that it is in, with a checkpoint where it has a folder.
  if (!flags.out.empty()) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, [](int) { stop_reference = 1; });
  }
  ReferenceCheckpoints checkpoints;
  checkpoints.stop = [] { return stop_reference != 0; };
  checkpoints.saved = [](int step, const std::string& failure) {
    nlohmann::json line = {{"checkpoint", step}};
    if (!failure.empty()) line["failure"] = failure;
    std::cout << line.dump() << std::endl;
  };
  checkpoints.validated = [](int step, const Evaluation& e) {
    const nlohmann::json line = {
        {"validation", step}, {"loss", e.loss()}, {"accuracy", e.accuracy()}, {"samples", e.samples}};
    std::cout << line.dump() << std::endl;
  };
  const absl::Status status = RunReference(*spec, flags.out, print, backend, checkpoints);
  if (absl::IsCancelled(status)) return Complain(status, kInterrupted);
  return status.ok() ? kOk : Complain(status, CodeOf(status));
}

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// Ends the loop at SIGINT and SIGTERM; the thread that waits for them is the only one that gets them.
class SignalStop {
 public:
  SignalStop() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  void Watch(WorkerLoop* loop, SessionLink* link) {
    thread_ = StartThread([this, loop, link] {
      int signal = 0;
      sigwait(&set_, &signal);
      if (signal == SIGUSR2) return;
      taken_ = signal;
      link->LeaveRun(absl::StrCat("it was stopped by SIG", sigabbrev_np(signal)));
      loop->Stop();
    });
  }
  // Returns the signal that ended the loop; 0 for none.
  int taken() const { return taken_; }
  // Stops watching. After it no signal reaches the loop; it may be destroyed.
  void Unwatch() {
    if (!thread_.joinable()) return;
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
  }
  ~SignalStop() { Unwatch(); }

 private:
  sigset_t set_;
  std::atomic<int> taken_{0};
  std::thread thread_;
};

int Serve(const Flags& flags, std::unique_ptr<DeviceBackend> backend, SignalStop& signals) {
  // If another process owns this one, that process reports for it.
  const DaemonLog log("weft-worker", flags.owned ? LogLevel::kError : flags.log_level);
  UcxOptions transport_options = UcxOptionsFromEnvironment();
  transport_options.log = [&log](const std::string& line) { log.Info(line); };
  transport_options.link_timeout_ns = int64_t{flags.link_timeout} * 1'000'000'000;
  ChooseNetwork(flags.data_network, flags.coordinator, &transport_options);
  if (backend != nullptr) UseDevice(backend->name(), backend->uuid(), &backend->memory(), &transport_options);
  const std::unique_ptr<GpuMonitor> gpu = backend == nullptr ? nullptr : GpuMonitor::Open(backend->uuid());
  const std::unique_ptr<Device> device =
      backend == nullptr ? CreateCpuDevice() : CreateTorchDevice(std::move(backend));
  device->PrepareThread();
  absl::StatusOr<std::unique_ptr<Transport>> transport = CreateUcxTransport(transport_options);
  if (!transport.ok()) return Complain(transport.status(), kFailed);
  absl::StatusOr<std::unique_ptr<SessionStream>> stream =
      SessionStream::Open({flags.coordinator, int64_t{flags.connect_timeout} * 1'000'000'000});
  if (!stream.ok()) return Complain(stream.status(), kBadConfiguration);
  SessionLink link(*std::move(stream), [&log](const std::string& line) { log.Info(line); });
  WorkerLoopOptions options;
  options.spin_microseconds = flags.spin_us;
  options.join_timeout_ns = int64_t{flags.joining} * 1'000'000'000;
  if (gpu != nullptr) options.gpu_figures = [&gpu] { return gpu->Latest(); };
  WorkerLoop loop(options, *device, **transport, link);
  absl::StatusOr<std::unique_ptr<WorkerMetrics>> metrics =
      WorkerMetrics::Start(flags.metrics, &loop, gpu.get());
  if (!metrics.ok()) return Complain(metrics.status(), kBadConfiguration);
  if (*metrics != nullptr)
    std::cerr << "weft-worker: note: metrics at http://" << (*metrics)->address() << "/metrics\n";
  Hello hello;
  hello.host = HostName();
  hello.pid = getpid();
  hello.process = flags.process;
  hello.worker = flags.name.empty() ? absl::StrCat("worker-", hello.pid) : flags.name;
  hello.address = (*transport)->address();
  hello.device = std::string(device->name().substr(0, device->name().find(':')));
  hello.device_id = std::string(device->uuid());
  if (Collectives* collectives = device->collectives()) hello.collectives = collectives->name();
  link.Send(hello);
  signals.Watch(&loop, &link);
  const absl::Status status = loop.Run();
  if (loop.hangs()) std::_Exit(Complain(status, kFailed));  // it cannot be cleaned up
  signals.Unwatch();
  metrics->reset();
  link.Close(500'000'000).IgnoreError();
  (*transport)->Close(MonotonicNow() + 200'000'000);
  if (signals.taken() != 0) log.Info(absl::StrCat("stopping on SIG", sigabbrev_np(signals.taken())));
  if (status.ok() && signals.taken() == 0 && !link.shutdown().empty() && !flags.owned) {
    return Complain(
        absl::UnavailableError(absl::StrCat("the coordinator at ", flags.coordinator,
                                            " was stopped: ", link.shutdown(), "; start this worker again")),
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

// Of a worker that serves a coordinator.
CLI::Option* AddServiceFlags(CLI::App& app, Flags& flags) {
  auto* coordinator = app.add_option("--coordinator", flags.coordinator,
                                     "Address of the coordinator: unix:PATH or HOST:PORT");
  app.add_option("--name", flags.name, "Name in messages and listings; letters a-z, digits and '-'");
  app.add_flag("--owned", flags.owned, "Of weft train, which starts and ends this process")->group("");
  app.add_option("--log-level", flags.log_level,
                 "Least grave of what is logged: error, warning or info (default)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, LogLevel>{
          {"error", LogLevel::kError}, {"warning", LogLevel::kWarning}, {"info", LogLevel::kInfo}}))
      ->type_name("LEVEL");
  app.add_option("--process", flags.process, "Wanted process number within a run; -1 for any")
      ->check(CLI::Range(-1, 1 << 20));
  app.add_option("--metrics", flags.metrics, "Serve /metrics here: HOST:PORT; port 0 picks a free one");
  app.add_option("--spin-us", flags.spin_us,
                 "Microseconds that an idle rank polls before it blocks; -1 chooses")
      ->check(CLI::Range(-1, 1'000'000));
  app.add_option("--connect-timeout", flags.connect_timeout,
                 "Seconds without a connection to the coordinator, at first or later, after which the worker "
                 "gives up (default 30)")
      ->check(CLI::Range(1, 86400));
  app.add_option("--joining", flags.joining,
                 "Seconds from a run's beginning until its GPUs' collectives are complete (default 290, a "
                 "little less than the coordinator's --preparing)")
      ->check(CLI::Range(1, 86400));
  app.add_option(
         "--data-network", flags.data_network,
         "Network of the data plane: local (this machine only, no listening socket), all, or interfaces "
         "as in eth0,eth1. auto, the default: local where the coordinator is reached by a unix socket or "
         "loopback, else the interface by which it is reached")
      ->type_name("NETWORK");
  app.add_option("--link-timeout", flags.link_timeout,
                 "Seconds after which a data link is given up on which a tensor is awaited and that carries "
                 "nothing; shorter outages heal (default 120)")
      ->check(CLI::Range(10, 86400));
  return coordinator;
}

// Of a process that does one thing and exits. They exclude `coordinator`, and one another.
void AddTaskFlags(CLI::App& app, Flags& flags, CLI::Option* coordinator) {
  auto* reference = app.add_option("--reference", flags.reference,
                                   "Train this specification (JSON) as one plain loop and exit");
  app.add_option("--out", flags.out, "Folder for the checkpoints of --reference")->needs(reference);
  coordinator->excludes(reference);
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
}

int Main(int argc, char** argv) {
  CLI::App app("Computes jobs of training runs for a Weft coordinator.", "weft-worker");
  app.footer(
      "Examples:\n"
      "  weft-worker --coordinator unix:/run/weft/coordinator.sock\n"
      "  weft-worker --coordinator 127.0.0.1:7070 --metrics 127.0.0.1:9101\n"
      "Environment: UCX_TLS, UCX_NET_DEVICES choose the networks of the data plane, before --data-network;\n"
      "WEFT_DEVICE_PATH=A:B are folders in which libraries of devices are looked for first.");
  Flags flags;
  CLI::Option* coordinator = AddServiceFlags(app, flags);
  AddDeviceFlags(app, flags);
  AddTaskFlags(app, flags, coordinator);
  app.set_version_flag("--version", "weft-worker 0.1.0");
  try {
    app.parse(argc, argv);
    const bool reads = !flags.evaluate.empty() || !flags.generate.empty();
    if (flags.coordinator.empty() && flags.reference.empty() && !reads) {
      throw CLI::RequiredError("--coordinator");
    }
    if (reads && flags.checkpoint.empty()) throw CLI::RequiredError("--checkpoint");
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kOk : kUsage;
  }
  signal(SIGPIPE, SIG_IGN);
  RaiseOpenFileLimit();
  // Its own, gRPC's and UCX's, and one of each rank at least.
  constexpr int kThreads = 16;
  const absl::Status threads = flags.coordinator.empty() ? absl::OkStatus() : CheckThreads(kThreads);
  if (!threads.ok()) return Complain(threads, CodeOf(threads));
  // A device's driver may start threads, which take over which signals are blocked.
  std::optional<SignalStop> signals;
  if (!flags.coordinator.empty()) signals.emplace();
  // The device is loaded before anything uses LibTorch.
  absl::StatusOr<LoadedDevice> device = LoadFlaggedDevice(flags);
  if (!device.ok()) return Complain(device.status(), kBadConfiguration);
  if (!device->told.empty()) std::cerr << "weft-worker: " << device->told << std::endl;
  if (!flags.reference.empty()) return TrainReference(flags, device->backend.get());
  if (!flags.evaluate.empty()) return EvaluateCheckpoint(flags, device->backend.get());
  if (!flags.generate.empty()) return GenerateText(flags, device->backend.get());
  return Serve(flags, std::move(device->backend), *signals);
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
