#include "tests/testgpu/testgpu_rank.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/monotonic_clock.h"
#include "tests/testgpu/torch_device.h"
#include "worker/shell/compute/sum_of_squares.h"

namespace weft::testgpu {
namespace {

constexpr int kNotYet = 0xFF;

// Ordinary memory for what waits on the host; lives as long as the process, since tensors may outlive ranks.
MemorySource& OffloadMemory() {
  static auto* const memory = new PlainMemory;
  return *memory;
}

size_t SizeOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 4;
    case DataType::kBFloat16:
      return 2;
    case DataType::kInt64:
      return 8;
    case DataType::kUInt8:
      return 1;
  }
  return 0;
}

Tensor OwnedBlock(void* block, size_t bytes, const TensorShape& shape) {
  Tensor tensor;
  tensor.shape = shape;
  tensor.data = block;
  tensor.bytes = bytes;
  tensor.place = MemoryPlace::kDevice;
  tensor.owner = std::shared_ptr<void>(block, &DeviceMemory::Free);
  return tensor;
}

class ChargeScope final : public RankDevice::Scope {
 public:
  explicit ChargeScope(AllocationScope scope)
      : scope_(std::move(scope)), outer_(std::exchange(CurrentThread().scope, &scope_)) {}
  ~ChargeScope() override { CurrentThread().scope = outer_; }

 private:
  const AllocationScope scope_;
  const AllocationScope* const outer_;
};

}  // namespace

TestRank::TestRank(const Options& options, const FlatMath& host_math, MemorySource& host)
    : options_(options),
      math_(host_math),
      transfer_(SegmentAllocator::Create(host)),
      offload_(SegmentAllocator::Create(OffloadMemory())),
      queue_(static_cast<uint64_t>(options.rank) + 1, options.max_delay_us),
      owner_(std::make_shared<MemoryOwner>(options.rank, queue_.progress())) {}

// Drains the queue, whose remaining work uses the rank.
TestRank::~TestRank() { queue_.Drain().IgnoreError(); }

c10::Device TestRank::torch_device() const { return TorchDevice(options_.device); }

absl::StatusOr<Tensor> TestRank::NewFlat(int64_t elements, MemoryClass memory_class, DataType type) {
  const ChargeScope scope({owner_, memory_class});
  const size_t bytes = static_cast<size_t>(elements) * SizeOf(type);
  absl::StatusOr<void*> block = AllocateHere(bytes);
  if (!block.ok()) return block.status();
  return OwnedBlock(*block, bytes, {type, 1, {elements}});
}

std::unique_ptr<RankDevice::Scope> TestRank::Charge(MemoryClass memory_class, Tallied tallied) {
  return std::make_unique<ChargeScope>(AllocationScope{owner_, memory_class, tallied});
}

void TestRank::BeginTally() { DeviceMemory::Instance().BeginTally(*owner_); }

int64_t TestRank::tally(MemoryClass memory_class) const {
  return DeviceMemory::Instance().tally(*owner_, memory_class);
}

BytesByClass TestRank::live_bytes() const {
  BytesByClass bytes = DeviceMemory::Instance().live(*owner_);
  constexpr auto kHost = static_cast<size_t>(MemoryClass::kHost);
  bytes[kHost] = offload_->live_bytes()[kHost];
  return bytes;
}

int64_t TestRank::most_bytes() const { return DeviceMemory::Instance().most_bytes(*owner_); }

BytesByClass TestRank::peak_bytes() const {
  BytesByClass bytes = DeviceMemory::Instance().peak(*owner_);
  constexpr auto kHost = static_cast<size_t>(MemoryClass::kHost);
  bytes[kHost] = offload_->peak_bytes()[kHost];
  return bytes;
}

// Checks the tensor; called by the queue, when it comes to reading it.
absl::Status TestRank::CheckReadable(const Tensor& tensor, const char* what) const {
  if (tensor.ready != nullptr) {
    if (absl::Status s = WaitFor(*tensor.ready); !s.ok()) return s;
  }
  const absl::StatusOr<DeviceMemory::Block> block = DeviceMemory::Instance().Find(tensor.data, tensor.bytes);
  if (!block.ok()) {
    return absl::Status(block.status().code(),
                        absl::StrFormat("testgpu: %s on rank %d, when the device came to it: %s", what,
                                        options_.rank, block.status().message()));
  }
  if (block->owner == owner_ || block->writer == nullptr) return absl::OkStatus();
  const absl::StatusOr<bool> written = block->writer->Reached();
  if (!written.ok()) return written.status();
  if (*written) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "testgpu: %s on rank %d: rank %d writes the memory after the tensor was said to be ready", what,
      options_.rank, block->owner->rank()));
}

absl::StatusOr<Tensor> TestRank::ToHost(const Tensor& tensor, HostUse use) {
  if (tensor.place == MemoryPlace::kHost) return tensor;
  const bool offload = use == HostUse::kOffload;
  SegmentAllocator& memory = offload ? *offload_ : *transfer_;
  absl::StatusOr<void*> block =
      memory.Allocate(tensor.bytes, offload ? MemoryClass::kHost : MemoryClass::kBuffers);
  if (!block.ok()) return block.status();
  std::memset(*block, kNotYet, tensor.bytes);
  auto event = std::make_shared<DeviceEvent>();
  Tensor copy = tensor;
  copy.data = *block;
  copy.owner = std::shared_ptr<void>(*block, &SegmentAllocator::Free);
  copy.place = MemoryPlace::kHost;
  copy.ready = event;
  queue_.Enqueue(event, [this, tensor, data = *block, owner = copy.owner]() -> absl::Status {
    if (tensor.bytes == 0) return absl::OkStatus();
    if (absl::Status s = CheckReadable(tensor, "a copy to the host"); !s.ok()) return s;
    std::memcpy(data, DeviceMemory::Instance().Mirror(tensor.data), tensor.bytes);
    return absl::OkStatus();
  });
  return copy;
}

absl::StatusOr<Tensor> TestRank::ToDevice(const Tensor& tensor, MemoryClass memory_class) {
  if (tensor.place == MemoryPlace::kDevice) return tensor;
  const ChargeScope scope({owner_, memory_class});
  absl::StatusOr<void*> block = AllocateHere(tensor.bytes);
  if (!block.ok()) return block.status();
  Tensor copy = OwnedBlock(*block, tensor.bytes, tensor.shape);
  copy.made_ns = tensor.made_ns;
  auto event = std::make_shared<DeviceEvent>();
  copy.ready = event;
  DeviceMemory::Instance().SetWriter(*block, nullptr);
  DeviceMemory::Instance().SetArriving(*block, event, /*in_order=*/false);
  queue_.Enqueue(event, [tensor, data = *block, owner = copy.owner]() -> absl::Status {
    if (tensor.ready != nullptr) {
      if (absl::Status s = WaitFor(*tensor.ready); !s.ok()) return s;
    }
    if (tensor.bytes > 0) std::memcpy(DeviceMemory::Instance().Mirror(data), tensor.data, tensor.bytes);
    return absl::OkStatus();
  });
  return copy;
}

at::Tensor TestRank::NewHostTensor(at::IntArrayRef sizes, c10::ScalarType type) {
  return NewPinnedTensor(sizes, type);
}

// Kernels run when they are enqueued, so here the host waits where a device would.
absl::Status TestRank::AwaitWriter(const Tensor& tensor) const {
  if (tensor.place != MemoryPlace::kDevice) return absl::InvalidArgumentError("of a tensor on the host");
  if (tensor.ready != nullptr) {
    if (absl::Status s = WaitFor(*tensor.ready); !s.ok()) return s;
  }
  const absl::StatusOr<DeviceMemory::Block> block = DeviceMemory::Instance().Find(tensor.data, tensor.bytes);
  if (!block.ok()) return block.status();
  if (block->owner == owner_ || block->writer == nullptr) return absl::OkStatus();
  const absl::StatusOr<bool> written = block->writer->Reached();
  if (!written.ok()) return written.status();
  if (*written) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "rank %d writes the memory after the tensor was said to be ready", block->owner->rank()));
}

// The memory keeps itself from then on, for all ranks that have awaited it (device_memory.h).
Tensor TestRank::Await(Tensor tensor) {
  if (tensor.bytes == 0) return tensor;
  if (absl::Status s = AwaitWriter(tensor); !s.ok()) {
    Fault(absl::Status(s.code(), absl::StrCat("Await: ", s.message()))).IgnoreError();
    return tensor;
  }
  DeviceMemory::Instance().AddUser(tensor.data, owner_);
  if (JobUnderWay* const job = CurrentThread().job.get()) job->kept.push_back(tensor);
  return tensor;
}

absl::Status TestRank::Load(void* to, const void* host, size_t bytes) {
  if (absl::Status s = CheckMayWait("Load"); !s.ok()) return s;
  if (absl::Status s = Touch("Load", to, bytes, /*writes=*/true); !s.ok()) return s;
  if (absl::Status s = queue_.Drain(); !s.ok()) return s;
  std::memcpy(DeviceMemory::Instance().Mirror(to), host, bytes);
  return absl::OkStatus();
}

absl::Status TestRank::ReadBack(void* host, const void* from, size_t bytes) {
  if (absl::Status s = CheckMayWait("ReadBack"); !s.ok()) return s;
  if (absl::Status s = Touch("ReadBack", from, bytes, /*writes=*/false); !s.ok()) return s;
  if (absl::Status s = queue_.Drain(); !s.ok()) return s;
  std::memcpy(host, DeviceMemory::Instance().Mirror(from), bytes);
  return absl::OkStatus();
}

void TestRank::BeginJob(const Job& job, bool overlapped) {
  ThreadState& thread = CurrentThread();
  thread.device = options_.device;
  thread.stream = overlapped ? 1 : 0;
  thread.job = std::make_unique<JobUnderWay>();
  thread.job->job = job;
  thread.job->rank = owner_;
  thread.job->stream = thread.stream;
  thread.job->begin_ns = MonotonicNow();
  SetThreadQueue(&queue_);
}

std::shared_ptr<LaunchedJob> TestRank::EndJob() {
  ThreadState& thread = CurrentThread();
  SetThreadQueue(nullptr);
  thread.stream = 0;
  const std::shared_ptr<JobUnderWay> job = std::move(thread.job);
  if (job == nullptr) return nullptr;
  const std::shared_ptr<TestLaunchedJob> launched = job->launched;
  queue_.Enqueue(launched->event(), [this, job] { return EndOf(*job); });
  return launched;
}

// Returns true, once in all processes, for the job whose words are in the file. `more`: its next line.
bool TestRank::HappensTo(const Job& job, const std::string& path, std::string* more) const {
  if (path.empty()) return false;
  std::ifstream file(path);
  std::string words;
  if (!std::getline(file, words) || words != Describe(job)) return false;
  if (more != nullptr) std::getline(file, *more);
  return std::remove(path.c_str()) == 0;
}

// Handles the moment when the device has come to the end of a job.
absl::Status TestRank::EndOf(JobUnderWay& job) {
  LaunchedJob::Figures figures;
  const DeviceMemory& memory = DeviceMemory::Instance();
  absl::Status status = job.fault;
  if (options_.injection != nullptr && ++options_.injection->jobs == options_.injection->failing_job) {
    status = absl::InternalError(
        absl::StrFormat("%s: testgpu: kernel error, as was asked for", Describe(job.job)));
  }
  if (options_.injection != nullptr && Describe(job.job) == options_.injection->deadly_job) {
    std::fprintf(stderr, "testgpu: takes up %s\ntestgpu: dies of it, as was asked for\n",
                 options_.injection->deadly_job.c_str());
    std::abort();
  }
  std::string seconds;
  if (options_.injection != nullptr && HappensTo(job.job, options_.injection->hang_file, &seconds)) {
    if (seconds.empty()) {
      while (true) pause();
    }
    sleep(static_cast<unsigned>(std::stoi(seconds)));
  }
  if (options_.injection != nullptr && HappensTo(job.job, options_.injection->lost_file)) {
    options_.injection->lost = true;
    status = absl::InternalError("testgpu: the device has fallen off the bus, as was asked for");
  }
  if (job.loss != nullptr) figures.loss = static_cast<double>(*memory.Mirror(job.loss));
  if (figures.loss.has_value() && options_.injection != nullptr &&
      HappensTo(job.job, options_.injection->nan_file))
    figures.loss = NAN;
  for (const Tensor& limbs : job.squares) {
    Tensor on_host = limbs;
    on_host.data = memory.Mirror(limbs.data);
    on_host.place = MemoryPlace::kHost;
    const absl::StatusOr<SumOfSquares> sum = SumOfSquares::FromTensor(on_host);
    if (sum.ok()) figures.gradient_norm = sum->Norm();
    if (!sum.ok() && status.ok()) status = sum.status();
  }
  job.kept.clear();
  job.loss_owner.reset();
  job.squares.clear();
  figures.start_ns = std::max(job.begin_ns, job.stream == 0 ? last_end_ns_ : 0);
  figures.end_ns = MonotonicNow();
  if (job.stream == 0) last_end_ns_ = figures.end_ns;
  job.launched->SetFigures(figures);
  return status;
}

void TestRank::ReportLoss(const at::Tensor& loss) {
  JobUnderWay* const job = CurrentThread().job.get();
  if (job == nullptr) return;
  job->loss_owner = std::make_shared<c10::Storage>(loss.storage());
  job->loss = loss.const_data_ptr<float>();
}

void TestRank::ReportSquares(const Tensor& limbs) {
  JobUnderWay* const job = CurrentThread().job.get();
  if (job != nullptr) job->squares.push_back(limbs);
}

}  // namespace weft::testgpu
