// Latency and bandwidth of the transport between two processes, beside ucx_perftest in the same minutes.
//
//   transport_bench [--rounds N] [--perftest PATH] [--only TEST/BYTES/SYSTEM] [--quick]
//
// Cells: this transport in place (the consumer copies every byte once into a buffer that it keeps), copied by
// UCX, and over TCP; ucx_perftest's active messages over shared memory and over TCP. The cells of a round run
// one after the other, so that a ratio within a round compares like with like on a machine whose speed
// changes; what counts is the median of the rounds' ratios. One JSON object a line: every cell, then the
// ratios.
//
// Latency is half a round trip of tensors that are wanted ahead, with the return of their memory; both sides
// poll. Bandwidth has 16 tensors on their way. Two processes, pinned to two cores.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {
namespace {

constexpr uint64_t kRun = 1;
constexpr PeerId kOther = 1;
constexpr int kWindow = 16;
constexpr int kWantsAhead = 64;
constexpr Nanos kForever = 600'000'000'000;

Nanos MonotonicNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "transport_bench: %s\n", what.c_str());
  std::exit(1);
}

void Pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core % static_cast<int>(std::thread::hardware_concurrency()), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

struct Cell {
  std::string system;  // "in_place", "copied", "tcp", "perftest_shm", "perftest_tcp"
  std::string test;    // "latency", "bandwidth"
  size_t bytes = 0;
  int64_t iterations = 0;
};

// Of a bandwidth cell: every buffer of the window has been written before the clock starts, twice.
int64_t WarmUp(const Cell& cell) {
  return std::max<int64_t>(2 * kWindow, std::min<int64_t>(cell.iterations / 10, 50)) + 1;
}

UcxOptions OptionsOf(const std::string& system) {
  UcxOptions options;
  options.in_place = system == "in_place";
  if (system == "tcp") options.tls = "tcp";
  return options;
}

TensorKey Key(int64_t number, int from) {
  TensorKey key;
  key.run = kRun;
  key.step = static_cast<int32_t>(number);
  key.producer = from;
  return key;
}

Tensor MakeTensor(MemorySource& memory, size_t bytes) {
  const absl::StatusOr<void*> segment = memory.Allocate(bytes);
  if (!segment.ok()) Die(segment.status().ToString());
  std::memset(*segment, 7, bytes);
  TensorShape shape{DataType::kUInt8, 1, {static_cast<int64_t>(bytes)}};
  return Tensor{shape, *segment, bytes, std::shared_ptr<void>(*segment, [](void*) {})};
}

// One side of a cell. `self` 0 is the parent, which consumes and measures.
class Side {
 public:
  Side(const Cell& cell, int self) : cell_(cell), self_(self) {
    absl::StatusOr<std::unique_ptr<Transport>> created = CreateUcxTransport(OptionsOf(cell.system));
    if (!created.ok()) Die(created.status().ToString());
    transport_ = *std::move(created);
    transport_->BeginEpoch(kRun, 0);
    tensor_ = MakeTensor(transport_->memory(), cell.bytes);
  }
  const std::string& address() const { return transport_->address(); }
  void Connect(const std::string& address) {
    if (absl::Status s = transport_->Connect(kOther, address, "the other side"); !s.ok()) Die(s.ToString());
  }

  // Each waits for the other's tensor before it offers its own. Returns seconds.
  double PingPong() {
    int64_t wanted = 0;
    std::vector<TransportEvent> events;
    Nanos start = 0;
    const int64_t warm_up = cell_.iterations / 10;
    const int64_t total = cell_.iterations + warm_up;
    while (wanted < std::min<int64_t>(kWantsAhead, total)) Want(wanted++);
    for (int64_t i = 0; i < total; ++i) {
      if (i == warm_up) start = MonotonicNow();
      if (self_ == 0) Offer(i);
      // As in a worker, wants are sent when there is nothing more urgent.
      if (self_ == 0 && wanted < total) Want(wanted++);
      Next(&events);
      keep_ = *static_cast<const char*>(events[0].tensor.data);
      if (self_ == 1) Offer(i);
      events.clear();  // drops the tensor
      if (self_ == 1 && wanted < total) Want(wanted++);
    }
    return static_cast<double>(MonotonicNow() - start) * 1e-9;
  }

  double Consume() {
    std::vector<char> kept(cell_.bytes);
    int64_t wanted = 0;
    const int64_t warm_up = WarmUp(cell_), total = cell_.iterations + warm_up;
    std::vector<TransportEvent> events;
    Nanos start = 0;
    for (int64_t i = 0; i < total;) {
      while (wanted < std::min(i + kWantsAhead, total)) Want(wanted++);
      Next(&events);
      for (TransportEvent& event : events) {
        // Copied tensors are already in memory of this side.
        if (cell_.system == "in_place") std::memcpy(kept.data(), event.tensor.data, event.tensor.bytes);
        keep_ = kept[cell_.bytes / 2];
        event.tensor = Tensor{};
        if (++i == warm_up) start = MonotonicNow();
      }
      events.clear();
    }
    return static_cast<double>(MonotonicNow() - start) * 1e-9;
  }

  void Produce() {
    const int64_t total = cell_.iterations + WarmUp(cell_);
    std::vector<TransportEvent> events;
    for (int64_t i = 0; i < total;) {
      if (transport_->bytes_held() < kWindow * cell_.bytes) {
        Offer(i++);
      } else {
        transport_->Progress(MonotonicNow(), &events);
      }
    }
  }

  void Close() {
    transport_->Close(MonotonicNow() + 10'000'000'000);
    transport_.reset();
  }

 private:
  void Want(int64_t i) { transport_->Want(kOther, Key(i, 1 - self_), MonotonicNow() + kForever); }
  void Offer(int64_t i) { transport_->Offer(kOther, Key(i, self_), tensor_); }
  void Next(std::vector<TransportEvent>* events) {
    while (events->empty()) transport_->Progress(MonotonicNow(), events);
    if ((*events)[0].kind != TransportEvent::Kind::kArrived) Die((*events)[0].status.ToString());
  }

  const Cell cell_;
  const int self_;
  std::unique_ptr<Transport> transport_;
  Tensor tensor_;
  volatile char keep_ = 0;
};

// Starts a program with pipes; returns its pid and the pipe's ends.
struct Child {
  pid_t pid = -1;
  FILE* to = nullptr;
  FILE* from = nullptr;
};
Child Spawn(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment,
            int core) {
  int in[2], out[2];
  if (pipe(in) != 0 || pipe(out) != 0) Die("pipe");
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // leaves nothing behind if this process is killed
    Pin(core);
    dup2(in[0], 0);
    dup2(out[1], 1);
    for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    std::perror(argv[0]);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  child.to = fdopen(in[1], "w");
  child.from = fdopen(out[0], "r");
  return child;
}
std::string ReadLine(FILE* file) {
  std::string line;
  for (int c; (c = std::fgetc(file)) != EOF && c != '\n';) line += static_cast<char>(c);
  return line;
}
int Finish(Child* child) {
  std::fclose(child->to);
  std::fclose(child->from);
  int status = 0;
  waitpid(child->pid, &status, 0);
  return status;
}

// Seconds for `cell.iterations` (round trips for latency).
double MeasureOurs(const Cell& cell) {
  char self[4096];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (n <= 0) Die("readlink");
  self[n] = '\0';
  Side side(cell, 0);
  Child child = Spawn(
      {self, "--child", cell.system, cell.test, absl::StrCat(cell.bytes), absl::StrCat(cell.iterations)}, {},
      1);
  std::fprintf(child.to, "%s\n", absl::BytesToHexString(side.address()).c_str());
  std::fflush(child.to);
  side.Connect(absl::HexStringToBytes(ReadLine(child.from)));
  const double seconds = cell.test == "latency" ? side.PingPong() : side.Consume();
  side.Close();
  if (Finish(&child) != 0) Die("the other side failed");
  return seconds;
}

int RunChild(const Cell& cell) {
  Side side(cell, 1);
  std::cout << absl::BytesToHexString(side.address()) << std::endl;
  std::string address;
  if (!std::getline(std::cin, address)) return 1;
  side.Connect(absl::HexStringToBytes(address));
  if (cell.test == "latency") {
    side.PingPong();
  } else {
    side.Produce();
  }
  side.Close();
  return 0;
}

// ucx_perftest in two processes; microseconds one way, or GB/s.
double MeasurePerftest(const Cell& cell, const std::string& program, int port) {
  const std::map<std::string, std::string> environment = {
      {"UCX_TLS", cell.system == "perftest_tcp" ? "tcp" : "sysv,posix,cma"},
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
    for (int k = 0; k < kBatch; ++k) side[0]->Want(kOther, Key(i + k, 1), kForever * 1000);
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
  Bench(int rounds, bool quick, std::string perftest, std::string only)
      : rounds_(rounds), quick_(quick), perftest_(std::move(perftest)), only_(std::move(only)) {}

  void Run() {
    const std::vector<Case> cases = {{"latency", 64},
                                     {"latency", 4096},
                                     {"bandwidth", 64 << 10},
                                     {"bandwidth", 1 << 20},
                                     {"bandwidth", 16 << 20}};
    for (int round = 0; round < rounds_; ++round) {
      for (const Case& c : cases) {
        for (const char* system : {"in_place", "perftest_shm", "copied", "tcp", "perftest_tcp"}) {
          if (perftest_.empty() && absl::StartsWith(system, "perftest")) continue;
          if (!only_.empty() && absl::StrCat(c.test, "/", c.bytes, "/", system) != only_) continue;
          RunCell(round, {system, c.test, c.bytes, Iterations(c, absl::EndsWith(system, "tcp"))});
        }
      }
    }
    for (const size_t bytes : {size_t{0}, size_t{64}, size_t{4096}}) {
      for (const char* system : {"in_place", "copied"}) {
        std::printf(
            "{\"summary\": \"cpu\", \"bytes\": %zu, \"system\": \"%s\", \"cpu_us_both_sides\": %.3f}\n",
            bytes, system, CpuMicroseconds(system, bytes, quick_ ? 20'000 : 200'000));
      }
    }
    for (const Case& c : cases) {
      Summarize(c, "in_place", "perftest_shm");
      Summarize(c, "copied", "perftest_shm");
      Summarize(c, "tcp", "perftest_tcp");
    }
  }

 private:
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
  const std::string perftest_, only_;
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
  int rounds = 5;
  bool quick = false;
  std::string only;
  std::string perftest = "build/deps/ucx/bin/ucx_perftest";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--perftest") == 0 && i + 1 < argc) {
      perftest = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else {
      weft::Die("usage: transport_bench [--rounds N] [--perftest PATH] [--only TEST/BYTES/SYSTEM] [--quick]");
    }
  }
  if (access(perftest.c_str(), X_OK) != 0) {
    std::fprintf(stderr, "transport_bench: %s cannot be executed; measuring without it\n", perftest.c_str());
    perftest.clear();
  }
  weft::Pin(0);
  weft::Bench(rounds, quick, perftest, only).Run();
  return 0;
}
