#include "tests/bench/transport_cell.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/device_memory.h"
#include "tests/conformance/worker_certificates.h"

namespace weft {
namespace {

constexpr int kWindow = 16;
constexpr int kWantsAhead = 64;

// The kind of the device whose memory the cell moves; "" for the host's.
std::string DeviceOf(const std::string& system) {
  for (const char* kind : {"cuda", "host"}) {
    if (absl::StartsWith(system, kind)) return kind;
  }
  return "";
}

}  // namespace

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

// Returns the messages before the clock of a bandwidth cell starts: every buffer of the window has been
// written twice by then.
int64_t WarmUp(const Cell& cell) {
  return std::max<int64_t>(2 * kWindow, std::min<int64_t>(cell.iterations / 10, 50)) + 1;
}

UcxOptions OptionsOf(const std::string& system) {
  UcxOptions options;
  options.in_place = system == "in_place" || absl::EndsWith(system, "_staged");
  options.device_direct = !absl::EndsWith(system, "_staged");
  if (system == "tcp") options.ucx_transports = "tcp";
  if (system == "tls") {
    options.tls_network = testing::LoopbackNetworkWith(std::getenv(kCertificates));
    options.shared_memory = false;
  }
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

namespace {

// One side of a cell. `self` 0 is the parent, which consumes and measures.
class Side {
 public:
  Side(const Cell& cell, int self) : cell_(cell), self_(self) {
    UcxOptions options = OptionsOf(cell.system);
    device_ = testing::OpenDevice(DeviceOf(cell.system));
    if (device_ != nullptr) UseDevice(device_->kind(), device_->uuid(), &device_->memory(), &options);
    absl::StatusOr<std::unique_ptr<Transport>> created = CreateUcxTransport(options);
    if (!created.ok()) Die(created.status().ToString());
    transport_ = *std::move(created);
    transport_->BeginEpoch(kRun, 0);
    tensor_ = device_ == nullptr ? MakeTensor(transport_->memory(), cell.bytes)
                                 : testing::MakeDeviceTensor(*device_, cell.bytes, 7);
    // A worker keeps its staging memory for reuse; so does this side, for each tensor that may be on its way.
    staging_ = device_ != nullptr && !options.device_direct;
    if (!staging_) return;
    for (int i = 0; i < kWindow; ++i) staged_.push_back(LockedTensor());
    locked_ = LockedTensor();
    landed_ = testing::MakeDeviceTensor(*device_, cell.bytes, 0);
  }
  const std::string& address() const { return transport_->address(); }
  void Connect(const std::string& address) {
    if (absl::Status s = transport_->Connect(kOther, address, "the other side"); !s.ok()) Die(s.ToString());
    if (device_ != nullptr && transport_->CarriesDevice(kOther) == staging_) {
      Die(absl::StrCat("UCX has no direct way for ", cell_.system, " (",
                       transport_->PathTo(kOther, MemoryPlace::kDevice), ")"));
    }
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
      // Wants are sent when there is nothing more urgent, as in a worker.
      if (self_ == 0 && wanted < total) Want(wanted++);
      Next(&events);
      if (staging_) {
        ToDevice(events[0].tensor);
      } else if (device_ == nullptr) {
        keep_ = *static_cast<const char*>(events[0].tensor.data);
      }
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
        if (staging_) ToDevice(event.tensor);
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
    for (const Tensor& tensor : staged_) device_->Unlock(tensor.data);
    if (staging_) device_->Unlock(locked_.data);
    tensor_ = landed_ = locked_ = Tensor{};
    staged_.clear();
    transport_->Close(MonotonicNow() + 10'000'000'000);
    transport_.reset();
  }

 private:
  void Want(int64_t i) { transport_->Want(kOther, Key(i, 1 - self_)); }
  void Offer(int64_t i) {
    if (!staging_) return transport_->Offer(kOther, Key(i, self_), tensor_);
    const Tensor& host = staged_[i % kWindow];
    device_->Read(host.data, tensor_.data, tensor_.bytes);
    transport_->Offer(kOther, Key(i, self_), host);
  }
  // Copies to the device. A tensor that is read in place lies in memory that this side's device does not know
  // (rank_device.h, ToDevice).
  void ToDevice(const Tensor& tensor) {
    std::memcpy(locked_.data, tensor.data, tensor.bytes);
    device_->Write(landed_.data, locked_.data, tensor.bytes);
  }
  Tensor LockedTensor() {
    const Tensor tensor = MakeTensor(transport_->memory(), cell_.bytes);
    device_->Lock(tensor.data, tensor.bytes);
    return tensor;
  }
  void Next(std::vector<TransportEvent>* events) {
    while (events->empty()) transport_->Progress(MonotonicNow(), events);
    if ((*events)[0].kind != TransportEvent::Kind::kArrived) Die((*events)[0].status.ToString());
  }

  const Cell cell_;
  const int self_;
  std::unique_ptr<testing::TestDevice> device_;  // outlives what is in its memory
  std::unique_ptr<Transport> transport_;
  Tensor tensor_;
  bool staging_ = false;
  std::vector<Tensor> staged_;
  Tensor locked_, landed_;
  volatile char keep_ = 0;
};

}  // namespace

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

}  // namespace weft
