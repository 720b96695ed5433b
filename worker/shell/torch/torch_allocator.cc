#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <string>

#include "worker/shell/torch/memory_scope.h"

namespace weft {
namespace {

thread_local const MemoryScope* current_scope = nullptr;

class ScopedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const MemoryScope* scope = MemoryScope::Current();
    void* data = nullptr;
    if (scope == nullptr) {
      data = SegmentAllocator::AllocateOutside(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "no memory for a tensor of ", bytes, " bytes");
    } else {
      absl::StatusOr<void*> block =
          scope->allocator()->Allocate(bytes, scope->memory_class(), scope->tallied());
      TORCH_CHECK_WITH(OutOfMemoryError, block.ok(), std::string(block.status().message()));
      data = *block;
    }
    return {data, data, &SegmentAllocator::Free, c10::Device(c10::DeviceType::CPU)};
  }
  // Frees oneDNN's scratch memory, which comes and goes through the raw interface, where only the pointer is
  // known.
  c10::DeleterFnPtr raw_deleter() const override { return &SegmentAllocator::Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

MemoryScope::MemoryScope(SegmentAllocator* allocator, MemoryClass memory_class, Tallied tallied)
    : allocator_(allocator), memory_class_(memory_class), tallied_(tallied), outer_(current_scope) {
  current_scope = this;
}

MemoryScope::~MemoryScope() { current_scope = outer_; }

const MemoryScope* MemoryScope::Current() { return current_scope; }

void InstallTorchAllocator() {
  // The allocator lives as long as the process: tensors may be freed during its end.
  static ScopedAllocator* const allocator = [] {
    auto* made = new ScopedAllocator;
    constexpr uint8_t kAboveDefault = 1;
    c10::SetCPUAllocator(made, kAboveDefault);
    return made;
  }();
  (void)allocator;
}

}  // namespace weft
