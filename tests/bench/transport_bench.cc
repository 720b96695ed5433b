// Latency and bandwidth of the transport between two processes, beside ucx_perftest in the same minutes.
//
//   transport_bench [--rounds N] [--perftest PATH] [--only TEST/BYTES/SYSTEM] [--quick]
//
//   transport_bench --cuda [--rounds N] [--perftest PATH] [--quick]
//
// Cells: this transport in place (the consumer copies every byte once into a buffer that it keeps), copied by
// UCX, over TLS, and over TCP; ucx_perftest's active messages over shared memory and over TCP. The cells of a
// round run one after the other, so that a ratio within a round compares like with like on a machine whose
// speed changes; what counts is the median of the rounds' ratios. One JSON object a line: every cell, then
// the ratios.
//
// With --cuda: tensors of a GPU's memory, on which both processes compute: as they are (`cuda`) and staged
// through host memory (`cuda_staged`, with the copies that a worker would make), beside ucx_perftest with
// `-m cuda`. Without a driver one line says so and nothing is measured. The same cells over host
// memory that is called a device's: --device host.
//
// Latency is half a round trip of tensors that are wanted ahead, with the return of their memory; both sides
// poll. Bandwidth has 16 tensors on their way. Two processes, pinned to two cores.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/bench/transport_cell.h"
#include "tests/conformance/device_memory.h"
#include "tests/conformance/worker_certificates.h"

namespace weft {
namespace {

// ucx_perftest in two processes; microseconds one way, or GB/s.
double MeasurePerftest(const Cell& cell, const std::string& program, int port) {
  const bool cuda = cell.system == "perftest_cuda";
  const std::map<std::string, std::string> environment = {
      {"UCX_TLS", cell.system == "perftest_tcp" ? "tcp"
                  : cuda                        ? "sysv,posix,cma,cuda"
                                                : "sysv,posix,cma"},
      {"UCX_NET_DEVICES", cell.system == "perftest_tcp" ? "lo" : "all"},
      {"UCX_WARN_UNUSED_ENV_VARS", "n"},
      {"UCX_LOG_LEVEL", "error"},
      {"LD_LIBRARY_PATH", program.substr(0, program.rfind('/')) + "/../lib"}};
  const std::string test = cell.test == "latency" ? "ucp_am_lat" : "ucp_am_bw";
  std::vector<std::string> arguments = {
      program,
      "-p",
      absl::StrCat(port),
      "-t",
      test,
      "-s",
      absl::StrCat(cell.bytes),
      "-n",
      absl::StrCat(cell.iterations),
      "-w",
      absl::StrCat(cell.test == "latency" ? cell.iterations / 10 + 1 : WarmUp(cell)),
      "-f",
      "-v"};
  if (cuda) arguments.insert(arguments.end(), {"-m", "cuda"});
  Child server = Spawn(arguments, environment, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  arguments.push_back("127.0.0.1");
  Child client = Spawn(arguments, environment, 0);
  std::map<std::string, double> values;
  std::vector<std::string> names;
  for (std::string line = ReadLine(client.from); !line.empty(); line = ReadLine(client.from)) {
    std::vector<std::string> fields = absl::StrSplit(line, ',');
    if (absl::StartsWith(line, "iterations,")) {
      names = fields;
    } else if (fields.size() == names.size()) {
      for (size_t i = 0; i < fields.size(); ++i) values[names[i]] = std::atof(fields[i].c_str());
    }
  }
  Finish(&client);
  Finish(&server);
  if (values.empty()) Die(absl::StrCat(program, " gave no result"));
  return cell.test == "latency" ? values["overall_lat"] : values["overall_bw"] * 1048576 / 1e9;
}

// Nanoseconds for a cache line to go from one core to the other: tells the machine's phase.
double CoreToCore() {
  std::atomic<int> ball{0};
  std::atomic<bool> ready{false}, stop{false};
  std::thread other([&] {
    Pin(1);
    ready = true;
    while (!stop) {
      if (ball.load(std::memory_order_acquire) == 1) ball.store(0, std::memory_order_release);
    }
  });
  while (!ready) std::this_thread::yield();
  int64_t bounces = 0;
  const Nanos start = MonotonicNow();
  while (MonotonicNow() - start < 10'000'000) {
    for (int i = 0; i < 16; ++i, bounces += 2) {
      ball.store(1, std::memory_order_release);
      while (ball.load(std::memory_order_acquire) != 0 && MonotonicNow() - start < 1'000'000'000) {
      }
    }
  }
  const double elapsed = static_cast<double>(MonotonicNow() - start);
  stop = true;
  other.join();
  return elapsed / static_cast<double>(bounces);
}

// CPU time of one transfer, both sides together: two transports driven in turn by one thread, so that neither
// another program nor the way between cores counts. Want, offer, hand-over, drop and release.
double CpuMicroseconds(const std::string& system, size_t bytes, int64_t iterations) {
  std::unique_ptr<Transport> side[2];
  for (auto& transport : side) {
    absl::StatusOr<std::unique_ptr<Transport>> created = CreateUcxTransport(OptionsOf(system));
    if (!created.ok()) Die(created.status().ToString());
    transport = *std::move(created);
    transport->BeginEpoch(kRun, 0);
  }
  for (int i = 0; i < 2; ++i) {
    if (!side[i]->Connect(kOther, side[1 - i]->address(), "the other").ok()) Die("connect");
  }
  const Tensor tensor = bytes > 0 ? MakeTensor(side[1]->memory(), bytes) : Tensor{};
  std::vector<TransportEvent> events;
  const auto cpu_now = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
  };
  double start = 0;
  constexpr int kBatch = 16;
  const int64_t warm_up = iterations / 10 / kBatch * kBatch;
  for (int64_t i = 0; i < iterations + warm_up; i += kBatch) {
    if (i == warm_up) start = cpu_now();
    for (int k = 0; k < kBatch; ++k) side[0]->Want(kOther, Key(i + k, 1));
    for (int k = 0; k < kBatch; ++k) side[1]->Offer(kOther, Key(i + k, 1), tensor);
    while (events.size() < kBatch || side[1]->bytes_held() > 0) {
      side[1]->Progress(i, &events);
      side[0]->Progress(i, &events);
      for (TransportEvent& event : events) event.tensor = Tensor{};
    }
    events.clear();
  }
  return (cpu_now() - start) / static_cast<double>(iterations);
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

struct Case {
  const char* test;
  size_t bytes;
};

class Bench {
 public:
  Bench(int rounds, bool quick, std::string perftest, std::string only, std::string device)
      : rounds_(rounds),
        quick_(quick),
        perftest_(std::move(perftest)),
        only_(std::move(only)),
        device_(std::move(device)) {}

  void Run() {
    const std::vector<Case> cases = {{"latency", 64},
                                     {"latency", 4096},
                                     {"bandwidth", 64 << 10},
                                     {"bandwidth", 1 << 20},
                                     {"bandwidth", 16 << 20}};
    for (int round = 0; round < rounds_; ++round) {
      for (const Case& c : cases) {
        for (const std::string& system : Systems()) {
          if (perftest_.empty() && absl::StartsWith(system, "perftest")) continue;
          if (!only_.empty() && absl::StrCat(c.test, "/", c.bytes, "/", system) != only_) continue;
          RunCell(round,
                  {system, c.test, c.bytes, Iterations(c, absl::EndsWith(system, "tcp") || system == "tls")});
        }
      }
    }
    if (device_.empty()) PrintCpu();
    for (const Case& c : cases) {
      if (device_.empty()) {
        Summarize(c, "in_place", "perftest_shm");
        Summarize(c, "copied", "perftest_shm");
        Summarize(c, "tcp", "perftest_tcp");
        Summarize(c, "tls", "tcp");
      } else {
        Summarize(c, device_, absl::StrCat("perftest_", device_));
        Summarize(c, device_ + "_staged", absl::StrCat("perftest_", device_));
      }
    }
  }

 private:
  std::vector<std::string> Systems() const {
    if (device_.empty()) return {"in_place", "perftest_shm", "copied", "tls", "tcp", "perftest_tcp"};
    std::vector<std::string> systems = {device_, device_ + "_staged"};
    if (device_ == "cuda") systems.insert(systems.begin() + 1, "perftest_cuda");
    return systems;
  }

  void PrintCpu() {
    for (const size_t bytes : {size_t{0}, size_t{64}, size_t{4096}}) {
      for (const char* system : {"in_place", "copied"}) {
        std::printf(
            "{\"summary\": \"cpu\", \"bytes\": %zu, \"system\": \"%s\", \"cpu_us_both_sides\": %.3f}\n",
            bytes, system, CpuMicroseconds(system, bytes, quick_ ? 20'000 : 200'000));
      }
    }
  }

  int64_t Iterations(const Case& c, bool tcp) const {
    const int64_t scale = quick_ ? 10 : 1;
    if (std::strcmp(c.test, "latency") == 0) return (tcp ? 5'000 : 50'000) / scale;
    const int64_t bytes = (tcp ? int64_t{1} : int64_t{4}) << 30;
    return std::max<int64_t>(bytes / static_cast<int64_t>(c.bytes) / scale, 64);
  }

  void RunCell(int round, const Cell& cell) {
    const double c2c = CoreToCore();
    double value;
    if (absl::StartsWith(cell.system, "perftest")) {
      value = MeasurePerftest(cell, perftest_, 20'000 + (getpid() + next_port_++) % 10'000);
    } else {
      const double seconds = MeasureOurs(cell);
      const double n = static_cast<double>(cell.iterations);
      value = cell.test == "latency" ? seconds / n / 2 * 1e6
                                     : n * static_cast<double>(cell.bytes) / seconds / 1e9;
    }
    results_[Name(cell.test, cell.bytes, cell.system)].push_back(value);
    std::printf(
        "{\"round\": %d, \"test\": \"%s\", \"bytes\": %zu, \"system\": \"%s\", \"%s\": %.3f, "
        "\"core_to_core_ns\": %.0f}\n",
        round, cell.test.c_str(), cell.bytes, cell.system.c_str(), Unit(cell.test), value, c2c);
    std::fflush(stdout);
  }

  void Summarize(const Case& c, const std::string& ours, const std::string& peer) {
    const std::vector<double>& a = results_[Name(c.test, c.bytes, ours)];
    const std::vector<double>& b = results_[Name(c.test, c.bytes, peer)];
    std::vector<double> ratios;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) ratios.push_back(a[i] / b[i]);
    std::printf(
        "{\"summary\": \"%s\", \"bytes\": %zu, \"system\": \"%s\", \"median_%s\": %.3f, \"peer\": \"%s\", "
        "\"peer_median\": %.3f, \"median_ratio\": %.3f}\n",
        c.test, c.bytes, ours.c_str(), Unit(c.test), Median(a), peer.c_str(), Median(b), Median(ratios));
  }

  static const char* Unit(const std::string& test) { return test == "latency" ? "us" : "gb_per_s"; }
  static std::string Name(const std::string& test, size_t bytes, const std::string& system) {
    return absl::StrCat(test, "/", bytes, "/", system);
  }

  const int rounds_;
  const bool quick_;
  const std::string perftest_, only_, device_;
  int next_port_ = 0;
  std::map<std::string, std::vector<double>> results_;
};

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc == 6 && std::strcmp(argv[1], "--child") == 0) {
    return weft::RunChild({argv[2], argv[3], std::strtoull(argv[4], nullptr, 10), std::atoll(argv[5])});
  }
  setenv(weft::kCertificates, weft::testing::SharedWorkerCertificates().c_str(), 1);
  int rounds = 5;
  bool quick = false;
  std::string only, device;
  std::string perftest = "build/deps/ucx/bin/ucx_perftest";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--perftest") == 0 && i + 1 < argc) {
      perftest = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--cuda") == 0) {
      device = "cuda";
    } else if (std::strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
      device = argv[++i];
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else {
      weft::Die(
          "usage: transport_bench [--cuda | --device host] [--rounds N] [--perftest PATH] "
          "[--only TEST/BYTES/SYSTEM] [--quick]");
    }
  }
  if (access(perftest.c_str(), X_OK) != 0) {
    std::fprintf(stderr, "transport_bench: %s cannot be executed; measuring without it\n", perftest.c_str());
    perftest.clear();
  }
  if (!device.empty() && weft::testing::OpenDevice(device) == nullptr) {
    std::fprintf(stderr, "%s: no driver on this machine, nothing measured\n",
                 device == "cuda" ? "CUDA" : device.c_str());
    return 0;
  }
  weft::Pin(0);
  weft::Bench(rounds, quick, perftest, only, device).Run();
  return 0;
}
