// weft-worker: a long-running process that computes the jobs of its ranks.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/shell/collectives.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/device_library.h"
#include "worker/shell/compute/evaluate.h"
#include "worker/shell/compute/reference.h"
#include "worker/shell/gpu_monitor.h"
#include "worker/shell/run_shape.h"
#include "worker/shell/session_link.h"
#include "worker/shell/transport/ucx_transport.h"
#include "worker/shell/worker_loop.h"
#include "worker/shell/worker_metrics.h"

namespace weft {
namespace {

// DESIGN.md section 6.
enum ExitCode {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 69,
  kTryAgain = 75,
  kDenied = 77,
  kBadConfiguration = 78
};

struct Flags {
  std::string coordinator, name, metrics, device = "cpu";
  bool graphs = true, nvtx = false;
  int process = -1;
  int spin_us = -1;
  int connect_timeout = 30, joining = 290;
  std::string reference, out;
  std::string evaluate, checkpoint;
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

// Each line of output is what is known so far; the last has all samples.
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
  const absl::StatusOr<Evaluation> result = Evaluate(*spec, flags.checkpoint, print, backend);
  if (result.ok()) return kOk;
  // A damaged checkpoint is as bad a configuration as damaged data.
  const bool damaged = absl::IsDataLoss(result.status());
  return Complain(result.status(), damaged ? kBadConfiguration : CodeOf(result.status()));
}

int TrainReference(const Flags& flags, DeviceBackend* backend) {
  const absl::StatusOr<RunSpec> spec = ReadSpecification(flags.reference);
  if (!spec.ok()) return Complain(spec.status(), kBadConfiguration);
  const auto print = [](const ReferenceStep& s) {
    nlohmann::json line = {{"step", s.step}, {"loss", s.loss}, {"seconds", s.seconds}};
    if (s.gradient_norm.has_value()) line["gradient_norm"] = *s.gradient_norm;
    std::cout << line.dump() << std::endl;
    return std::cout.good();
  };
  const absl::Status status = RunReference(*spec, flags.out, print, backend);
  return status.ok() ? kOk : Complain(status, CodeOf(status));
}

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// SIGINT and SIGTERM end the loop; the thread that waits for them is the only one that gets them.
class SignalStop {
 public:
  SignalStop() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  void Watch(WorkerLoop* loop) {
    thread_ = std::thread([this, loop] {
      int signal = 0;
      sigwait(&set_, &signal);
      if (signal != SIGUSR2) loop->Stop();
    });
  }
  // After it no signal reaches the loop; it may be destroyed.
  void Unwatch() {
    if (!thread_.joinable()) return;
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
  }
  ~SignalStop() { Unwatch(); }

 private:
  sigset_t set_;
  std::thread thread_;
};

int Serve(const Flags& flags, std::unique_ptr<DeviceBackend> backend, SignalStop& signals) {
  UcxOptions transport_options = UcxOptionsFromEnvironment();
  transport_options.log = [](const std::string& line) { std::cerr << "weft-worker: " + line + "\n"; };
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
  SessionLink link(*std::move(stream));
  WorkerLoopOptions options;
  options.spin_microseconds = flags.spin_us;
  options.join_timeout_ns = int64_t{flags.joining} * 1'000'000'000;
  if (gpu != nullptr) options.gpu_figures = [&gpu] { return gpu->Latest(); };
  WorkerLoop loop(options, *device, **transport, link);
  absl::StatusOr<std::unique_ptr<WorkerMetrics>> metrics =
      WorkerMetrics::Start(flags.metrics, &loop, gpu.get());
  if (!metrics.ok()) return Complain(metrics.status(), kBadConfiguration);
  if (*metrics != nullptr)
    std::cerr << "weft-worker: metrics at http://" << (*metrics)->address() << "/metrics\n";
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
  signals.Watch(&loop);
  const absl::Status status = loop.Run();
  if (loop.device_hangs()) std::_Exit(Complain(status, kFailed));  // it cannot be cleaned up
  signals.Unwatch();
  metrics->reset();
  link.Close(500'000'000).IgnoreError();
  (*transport)->Close(MonotonicNow() + 200'000'000);
  return status.ok() ? kOk : Complain(status, CodeOf(status));
}

int Main(int argc, char** argv) {
  CLI::App app("Computes jobs of training runs for a Weft coordinator.", "weft-worker");
  app.footer(
      "Examples:\n"
      "  weft-worker --coordinator unix:/run/weft/coordinator.sock\n"
      "  weft-worker --coordinator 127.0.0.1:7070 --metrics 127.0.0.1:9101\n"
      "Environment: UCX_TLS, UCX_NET_DEVICES choose the networks of the data plane;\n"
      "WEFT_DEVICE_PATH=A:B are folders in which libraries of devices are looked for first.");
  Flags flags;
  auto* coordinator = app.add_option("--coordinator", flags.coordinator,
                                     "Address of the coordinator: unix:PATH or HOST:PORT");
  app.add_option("--name", flags.name, "Name in messages and listings; letters a-z, digits and '-'");
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
  app.add_option(
         "--device", flags.device,
         "Device that computes: cpu (default), cuda, cuda:1, auto (a GPU if there is one that works, else "
         "the CPU), or KIND[:INDEX] of a library libweft_KIND.so")
      ->check([](const std::string& text) {
        const auto choice = ParseDeviceChoice(text);
        return choice.ok() ? std::string() : std::string(choice.status().message());
      })
      ->type_name("DEVICE");
  app.add_option("--joining", flags.joining,
                 "Seconds from a run's beginning until its GPUs' collectives are complete (default 290, a "
                 "little less than the coordinator's --preparing)")
      ->check(CLI::Range(1, 86400));
  app.add_flag("!--no-graphs", flags.graphs,
               "Give a GPU each kernel by itself instead of whole passes as CUDA graphs");
  app.add_flag("--nvtx", flags.nvtx, "Mark each job for a GPU's profiler (Nsight Systems)");
  auto* reference = app.add_option("--reference", flags.reference,
                                   "Train this specification (JSON) as one plain loop and exit");
  app.add_option("--out", flags.out, "Folder for the checkpoints of --reference")->needs(reference);
  coordinator->excludes(reference);
  auto* evaluate = app.add_option("--evaluate", flags.evaluate,
                                  "Evaluate a checkpoint on this specification's (JSON) data and exit");
  app.add_option("--checkpoint", flags.checkpoint, "Folder of the checkpoint of --evaluate")->needs(evaluate);
  evaluate->excludes(coordinator)->excludes(reference);
  app.set_version_flag("--version", "weft-worker 0.1.0");
  try {
    app.parse(argc, argv);
    if (flags.coordinator.empty() && flags.reference.empty() && flags.evaluate.empty()) {
      throw CLI::RequiredError("--coordinator");
    }
    if (!flags.evaluate.empty() && flags.checkpoint.empty()) throw CLI::RequiredError("--checkpoint");
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kOk : kUsage;
  }
  signal(SIGPIPE, SIG_IGN);
  // A device's driver may start threads, which take over which signals are blocked.
  std::optional<SignalStop> signals;
  if (!flags.coordinator.empty()) signals.emplace();
  // Before anything uses LibTorch.
  absl::StatusOr<LoadedDevice> device = LoadFlaggedDevice(flags);
  if (!device.ok()) return Complain(device.status(), kBadConfiguration);
  if (!device->told.empty()) std::cerr << "weft-worker: " << device->told << std::endl;
  if (!flags.reference.empty()) return TrainReference(flags, device->backend.get());
  if (!flags.evaluate.empty()) return EvaluateCheckpoint(flags, device->backend.get());
  return Serve(flags, std::move(device->backend), *signals);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
