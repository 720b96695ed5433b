#include "worker/shell/cuda/cuda_memory.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "run/layer_spec.h"

namespace weft {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::TraceEntry;

thread_local const CudaScope* current_scope = nullptr;

struct Charged {
  std::shared_ptr<CudaLedger> ledger;
  MemoryClass memory_class;
  int64_t bytes;
  uint32_t tally;
};

// Tracks the charged blocks by address. It is called under the allocator's lock. So this lock and the
// ledgers' are the last to be taken, and nothing here calls the allocator.
class Tracker {
 public:
  // Returns the tracker, which lives as long as the process: blocks may be freed during its end.
  static Tracker& Instance() {
    static Tracker* const tracker = new Tracker;
    return *tracker;
  }

  void Note(const TraceEntry& entry) {
    const bool of_graph = entry.mempool_.first != 0 || entry.mempool_.second != 0;
    switch (entry.action_) {
      case TraceEntry::ALLOC:
        if (!of_graph) Charge(blocks_, entry);
        break;
      case TraceEntry::FREE_COMPLETED:
        Release(blocks_, entry.addr_);
        break;
      case TraceEntry::SEGMENT_ALLOC:
        if (of_graph) Charge(segments_, entry);
        break;
      case TraceEntry::SEGMENT_FREE:
        Release(segments_, entry.addr_);
        break;
      default:
        break;
    }
  }

  void Register(const std::shared_ptr<CudaLedger>& ledger) {
    MutexLock lock(mutex_);
    std::erase_if(ledgers_, [](const std::weak_ptr<CudaLedger>& l) { return l.expired(); });
    ledgers_.push_back(ledger);
  }

  // Returns "weights 12, gradients 12, .." of all ranks of this process.
  std::string Alive() {
    BytesByClass total{};
    int ranks = 0;
    {
      MutexLock lock(mutex_);
      for (const std::weak_ptr<CudaLedger>& weak : ledgers_) {
        const std::shared_ptr<CudaLedger> ledger = weak.lock();
        if (ledger == nullptr) continue;
        ++ranks;
        const BytesByClass live = ledger->live_bytes();
        for (int c = 0; c < kMemoryClasses; ++c) total[c] += live[c];
      }
    }
    std::string text;
    for (int c = 0; c < kMemoryClasses; ++c) {
      if (total[c] == 0) continue;
      absl::StrAppend(&text, text.empty() ? "" : ", ",
                      std::string(MemoryClassName(static_cast<MemoryClass>(c))), " ", total[c]);
    }
    return absl::StrFormat("the %d ranks of this process hold %s", ranks, text.empty() ? "nothing" : text);
  }

 private:
  using Map = absl::flat_hash_map<size_t, Charged>;

  void Charge(Map& map, const TraceEntry& entry) {
    const CudaScope* const scope = CudaScope::Current();
    if (scope == nullptr) return;
    const auto asked = static_cast<int64_t>(entry.size_);
    const int64_t bytes = std::max(kTensorAlignment, AlignedBytes(asked));
    const uint32_t tally = scope->ledger()->Charge(scope->memory_class(), bytes, scope->tallied());
    MutexLock lock(mutex_);
    map[entry.addr_] = {scope->ledger(), scope->memory_class(), bytes, tally};
  }

  void Release(Map& map, size_t address) {
    Charged charged;
    {
      MutexLock lock(mutex_);
      const auto at = map.find(address);
      if (at == map.end()) return;
      charged = std::move(at->second);
      map.erase(at);
    }
    charged.ledger->Release(charged.memory_class, charged.bytes, charged.tally);
  }

  Mutex mutex_;
  Map blocks_, segments_;  // both under mutex_, which is taken where they are used
  std::vector<std::weak_ptr<CudaLedger>> ledgers_ ABSL_GUARDED_BY(mutex_);
};

// Notes the classes of an allocation that failed. The allocator calls this, without its lock, before it
// throws a message of its own, which knows no classes.
void NoteOutOfMemory(int64_t device, size_t asked, size_t total, size_t free) {
  const CudaScope* const scope = CudaScope::Current();
  if (scope == nullptr) return;
  const std::string message = absl::StrFormat(
      "cuda:%d has no %d bytes for %s of rank %d: of %d bytes that this process may use, %d are free; %s",
      device, asked, std::string(MemoryClassName(scope->memory_class())), scope->ledger()->rank(), total,
      free, Tracker::Instance().Alive());
  TORCH_CHECK_WITH(OutOfMemoryError, false, message);
}

// Deletes a block; by it the block's tensors are recognized.
struct BlockDeleter {
  cudaStream_t stream;
  void operator()(void* block) const { caching::raw_delete(block); }
};

}  // namespace

BytesByClass CudaLedger::live_bytes() const {
  BytesByClass bytes{};
  for (int i = 0; i < kMemoryClasses; ++i) bytes[i] = live_[i].load(std::memory_order_relaxed);
  return bytes;
}

BytesByClass CudaLedger::peak_bytes() const {
  BytesByClass bytes{};
  for (int i = 0; i < kMemoryClasses; ++i) bytes[i] = peak_[i].load(std::memory_order_relaxed);
  return bytes;
}

void CudaLedger::BeginTally() {
  MutexLock lock(mutex_);
  if (++tally_ == 0) tally_ = 1;
  tally_bytes_.fill(0);
}

int64_t CudaLedger::tally(MemoryClass memory_class) const {
  MutexLock lock(mutex_);
  return tally_bytes_[static_cast<int>(memory_class)];
}

void CudaLedger::BeginJob() {
  MutexLock lock(mutex_);
  meter_.Begin(Live(MemoryClass::kBuffers), Live(MemoryClass::kActivations));
}

JobBytes CudaLedger::job_bytes() const {
  MutexLock lock(mutex_);
  return meter_.Read(Live(MemoryClass::kBuffers), Live(MemoryClass::kActivations));
}

uint32_t CudaLedger::Charge(MemoryClass memory_class, int64_t bytes, Tallied tallied) {
  const int c = static_cast<int>(memory_class);
  MutexLock lock(mutex_);
  const int64_t live = live_[c].load(std::memory_order_relaxed) + bytes;
  live_[c].store(live, std::memory_order_relaxed);
  if (live > peak_[c].load(std::memory_order_relaxed)) peak_[c].store(live, std::memory_order_relaxed);
  meter_.Note(Live(MemoryClass::kBuffers), Live(MemoryClass::kActivations));
  live_sum_ += bytes;
  if (live_sum_ > most_bytes()) most_bytes_.store(live_sum_, std::memory_order_relaxed);
  if (tallied == Tallied::kNo || tally_ == 0) return 0;
  tally_bytes_[c] += bytes;
  return tally_;
}

void CudaLedger::Release(MemoryClass memory_class, int64_t bytes, uint32_t tally) {
  const int c = static_cast<int>(memory_class);
  MutexLock lock(mutex_);
  live_[c].store(live_[c].load(std::memory_order_relaxed) - bytes, std::memory_order_relaxed);
  live_sum_ -= bytes;
  if (tally != 0 && tally == tally_) tally_bytes_[c] -= bytes;
}

void InstallCudaTracker() {
  static const bool installed = [] {
    caching::attachAllocatorTraceTracker([](const TraceEntry& entry) { Tracker::Instance().Note(entry); });
    caching::attachOutOfMemoryObserver(&NoteOutOfMemory);
    return true;
  }();
  (void)installed;
}

void RegisterLedger(const std::shared_ptr<CudaLedger>& ledger) { Tracker::Instance().Register(ledger); }

CudaScope::CudaScope(std::shared_ptr<CudaLedger> ledger, MemoryClass memory_class, Tallied tallied)
    : ledger_(std::move(ledger)), memory_class_(memory_class), tallied_(tallied), outer_(current_scope) {
  current_scope = this;
}

CudaScope::~CudaScope() { current_scope = outer_; }

const CudaScope* CudaScope::Current() { return current_scope; }

absl::StatusOr<Tensor> NewCudaTensor(const std::shared_ptr<CudaLedger>& ledger, const TensorShape& shape,
                                     size_t bytes, MemoryClass memory_class,
                                     const c10::cuda::CUDAStream& stream) {
  try {
    const CudaScope scope(ledger, memory_class, Tallied::kNo);
    const c10::cuda::CUDAGuard guard(stream.device_index());
    // The allocator has no blocks of 0 bytes.
    void* const block = caching::raw_alloc_with_stream(std::max<size_t>(bytes, 1), stream.stream());
    Tensor tensor;
    tensor.shape = shape;
    tensor.data = block;
    tensor.bytes = bytes;
    tensor.owner = std::shared_ptr<void>(block, BlockDeleter{stream.stream()});
    tensor.place = MemoryPlace::kDevice;
    return tensor;
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(e.what_without_backtrace());
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat("LibTorch: ", e.what_without_backtrace()));
  }
}

bool IsBlockOf(const Tensor& tensor, const c10::cuda::CUDAStream& stream) {
  const BlockDeleter* const block = std::get_deleter<BlockDeleter>(tensor.owner);
  return block != nullptr && block->stream == stream.stream();
}

}  // namespace weft
