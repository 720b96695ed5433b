#include "tests/testgpu/thread_state.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::testgpu {
namespace {

const std::shared_ptr<MemoryOwner>& Nobody() {
  static const auto* const nobody = new auto(std::make_shared<MemoryOwner>(-1, nullptr));
  return *nobody;
}

std::string Where(const JobUnderWay* job) {
  if (job == nullptr) return "outside of jobs";
  return absl::StrFormat("in %s of rank %d", Describe(job->job), job->rank->rank());
}

}  // namespace

ThreadState& CurrentThread() {
  thread_local ThreadState state;
  return state;
}

absl::StatusOr<void*> AllocateHere(size_t bytes) {
  const ThreadState& thread = CurrentThread();
  DeviceMemory::Request request{bytes, Nobody()};
  if (thread.scope != nullptr) {
    request.owner = thread.scope->rank;
    request.memory_class = thread.scope->memory_class;
    request.tallied = thread.scope->tallied;
  }
  request.stream = thread.stream;
  if (thread.job != nullptr) request.writer = thread.job->launched->event();
  return DeviceMemory::Instance().Allocate(request);
}

absl::Status Fault(const absl::Status& status) {
  const ThreadState& thread = CurrentThread();
  absl::Status whole(status.code(),
                     absl::StrCat("testgpu: ", Where(thread.job.get()), ": ", status.message()));
  std::fprintf(stderr, "%s\n", std::string(whole.message()).c_str());
  if (thread.job != nullptr && thread.job->fault.ok()) thread.job->fault = whole;
  return whole;
}

absl::Status CheckMayWait(absl::string_view what) {
  if (CurrentThread().job == nullptr) return absl::OkStatus();
  return Fault(absl::FailedPreconditionError(absl::StrCat(what, " waits for the device")));
}

absl::Status Touch(absl::string_view what, const void* data, size_t bytes, bool writes) {
  if (bytes == 0) return absl::OkStatus();
  const ThreadState& thread = CurrentThread();
  if (!thread.prepared) {
    return Fault(absl::FailedPreconditionError(
        absl::StrCat(what, " runs on a thread that was not prepared: one of LibTorch's own?")));
  }
  const absl::StatusOr<DeviceMemory::Block> block = DeviceMemory::Instance().Find(data, bytes);
  if (!block.ok()) {
    return Fault(absl::Status(block.status().code(), absl::StrCat(what, ": ", block.status().message())));
  }
  const JobUnderWay* const job = thread.job.get();
  if (job != nullptr && !block->IsUsedBy(job->rank)) {
    return Fault(absl::FailedPreconditionError(
        absl::StrFormat("%s uses memory of rank %d, which was not awaited", what, block->owner->rank())));
  }
  if (job != nullptr && writes && block->owner->rank() >= 0 && block->owner != job->rank) {
    return Fault(absl::FailedPreconditionError(
        absl::StrFormat("%s writes memory of rank %d", what, block->owner->rank())));
  }
  if (block->arriving != nullptr) {
    const absl::StatusOr<bool> there = block->arriving->Reached();
    if (there.ok() && !*there && job != nullptr && !block->in_order) {
      return Fault(absl::FailedPreconditionError(
          absl::StrCat(what, " uses memory that a copy fills, which was not awaited")));
    }
    if (absl::Status s = block->arriving->Wait(); !s.ok()) return s;
  }
  if (writes && job != nullptr) DeviceMemory::Instance().SetWriter(data, job->launched->event());
  return absl::OkStatus();
}

}  // namespace weft::testgpu
