// Moves the tensors that a forward saves for its backward to host memory, and brings them back when the
// backward asks.
//
// While a HostOffload lives, every tensor that LibTorch's graph saves on this thread is copied to the host
// (RankDevice::ToHost, HostUse::kOffload), and the graph refers to that copy only: the bytes in the rank's
// own memory are free as soon as the forward itself no longer needs them. The backward gets a copy in the
// rank's memory, dropped after the nodes that saved the tensor have run. On the CPU that copy is made when
// the first of these nodes runs; a device with memory of its own begins all copies of a pass when its
// backward begins, in the order in which they will be needed, and each node waits, on the device, for its
// own. Tensors that share bytes share one copy, there and back. Values, strides and alignment are kept, so
// the bits of the gradients are the same. Parameters stay where they are, and so do small tensors of the host
// that some operations save beside those of the device.
//
// It rests on LibTorch's hooks for saved tensors, which C++ reaches through the autograd engine: a derived
// engine hands them out. Private to the adapter of LibTorch. Threads: a scope ends on the thread that began
// it; the backward may run on any one thread. Failure: c10::OutOfMemoryError where an arena has no memory.
#ifndef WEFT_WORKER_SHELL_TORCH_HOST_OFFLOAD_H_
#define WEFT_WORKER_SHELL_TORCH_HOST_OFFLOAD_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

// The bytes of one storage while they are away.
class OffloadedTensor {
 public:
  OffloadedTensor(RankDevice& device, Tensor host);

  // Begins to bring them back. Call it only if the device has memory of its own.
  void Begin();
  // Gives up a copy that was begun and not taken.
  void Forget() { arriving_ = {}; }
  c10::Storage Fetch();

 private:
  c10::Storage Copied() const;
  c10::Storage Arrived();

  RankDevice& device_;
  const Tensor host_;
  Tensor arriving_;
  c10::weak_intrusive_ptr<c10::StorageImpl> back_;  // copy in the rank's memory, while there is one
};

// The source of a copy to the host, as long as the copy reads it.
struct OffloadSource {
  explicit OffloadSource(c10::Storage of) : storage(std::move(of)) {}
  ~OffloadSource() {
    storage = c10::Storage();
    stripped.reset();
    *gone = true;
  }
  OffloadSource(const OffloadSource&) = delete;
  OffloadSource& operator=(const OffloadSource&) = delete;

  c10::Storage storage;
  std::shared_ptr<at::DataPtr> stripped;  // its bytes, once the storage has them no more
  // True once the source has given its bytes back, which takes a moment after its last owner is gone.
  const std::shared_ptr<std::atomic<bool>> gone = std::make_shared<std::atomic<bool>>(false);
};

// The offloaded tensors of one pass, in the order in which its forward saved them, as long as its graph needs
// them.
class OffloadedTensors {
 public:
  void Append(const std::shared_ptr<OffloadedTensor>& saved, const std::shared_ptr<OffloadSource>& source) {
    saved_.push_back(saved);
    sources_.push_back({source, source->gone});
  }
  // Returns the bytes that `tally` counts of a forward's storages, without those that go as soon as they have
  // been copied.
  int64_t Staying(const std::function<int64_t()>& tally) const;
  // Enclose a backward.
  void BeginAll();
  void ForgetRest();

 private:
  struct Source {
    std::weak_ptr<OffloadSource> source;
    std::shared_ptr<const std::atomic<bool>> gone;
  };
  std::vector<std::weak_ptr<OffloadedTensor>> saved_;
  std::vector<Source> sources_;
};

class HostOffload {
 public:
  using Storages = std::array<const c10::StorageImpl*, 2>;
  // The device must outlive the graphs that are made in the scope; `parameters` are the storages of those
  // that stay. Tensors that go are appended to `offloaded`.
  HostOffload(RankDevice& device, Storages parameters, OffloadedTensors* offloaded);
  ~HostOffload();
  HostOffload(const HostOffload&) = delete;
  HostOffload& operator=(const HostOffload&) = delete;

  // Returns the innermost scope of this thread, or null.
  static HostOffload* Current();

  bool Stays(const at::Tensor& tensor) const;
  std::shared_ptr<OffloadedTensor> Send(const at::Tensor& tensor);

  // Takes the bytes of a tensor away, whose storage only the graph's end still refers to. They stay until a
  // copy of them that is on its way has been made.
  void Strip(const at::Tensor& tensor);

 private:
  // Tells the bytes of a saved tensor from others: the storage, the counter of its writes, and how often
  // it was written. The counter belongs to it: parts of one storage may count by themselves, as the gates of
  // an LSTM do (unsafe_chunk), and a write to one of them leaves the counters of the others as they are.
  struct SentKey {
    const c10::StorageImpl* storage = nullptr;
    const void* counter = nullptr;
    uint32_t writes = 0;
    friend auto operator<=>(const SentKey&, const SentKey&) = default;
  };
  // A sent tensor. `from` and `counter` keep the addresses of the key from being used again.
  struct Sent {
    c10::weak_intrusive_ptr<c10::StorageImpl> from;
    c10::VariableVersion counter;
    std::shared_ptr<OffloadedTensor> away;
    std::weak_ptr<OffloadSource> source;
  };

  RankDevice& device_;
  const Storages parameters_;
  OffloadedTensors* const offloaded_;
  HostOffload* const outer_;
  std::map<SentKey, Sent> sent_;
};

// Makes the engine of this process the one that hands out the hooks; before the first graph, and when another
// one has been installed. Outside of scopes a backward that fails keeps nothing, and nothing else changes.
void InstallOffloadEngine();

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_HOST_OFFLOAD_H_
