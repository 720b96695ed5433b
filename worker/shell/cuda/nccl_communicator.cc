#include "worker/shell/cuda/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/cuda/nccl_line.h"

namespace weft {
namespace {

int64_t ElementsOf(const Tensor& tensor) { return static_cast<int64_t>(tensor.bytes / sizeof(float)); }

absl::Status CheckFlat(const Tensor& tensor, int64_t elements, absl::string_view what) {
  if (tensor.shape.type == DataType::kFloat32 && ElementsOf(tensor) == elements) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has %d bytes, not those of %d float32 elements", what, tensor.bytes, elements));
}

class NcclFence final : public Fence {
 public:
  NcclFence(std::shared_ptr<NcclLine> line, std::shared_ptr<const NcclOperation> operation)
      : line_(std::move(line)), operation_(std::move(operation)) {}
  absl::StatusOr<bool> Reached() override { return line_->IsDone(*operation_); }
  const NcclLine* line() const { return line_.get(); }

 private:
  const std::shared_ptr<NcclLine> line_;
  const std::shared_ptr<const NcclOperation> operation_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclLine> line, std::shared_ptr<NcclMember> member)
      : line_(std::move(line)), member_(std::move(member)) {}
  // Aborts, also at a good end: an abort does not wait for others, who may be dead. Nobody needs this member
  // any more when its run is forgotten, since that comes after all members have seen all operations done.
  ~NcclCommunicator() override { Abort(absl::CancelledError("the group is not used any more")); }

  absl::StatusOr<bool> Joined() override { return line_->Joined(*member_); }

  absl::StatusOr<std::shared_ptr<Fence>> AllReduce(const Tensor& from, const Tensor& to) override;
  absl::StatusOr<std::shared_ptr<Fence>> AllGather(const Tensor& slice, const Tensor& to,
                                                   const std::vector<int64_t>& slices) override;
  absl::StatusOr<std::shared_ptr<Fence>> ReduceScatter(const Tensor& from, const Tensor& slice,
                                                       const std::vector<int64_t>& slices) override;
  void Abort(const absl::Status& cause) override { line_->Leave(*member_, cause); }

 private:
  absl::Status CheckSlices(const Tensor& whole, const Tensor& slice,
                           const std::vector<int64_t>& slices) const;
  absl::StatusOr<std::shared_ptr<Fence>> Give(std::string what, const Tensor& from, const Tensor& to,
                                              std::function<ncclResult_t(ncclComm_t, cudaStream_t)> call);

  const std::shared_ptr<NcclLine> line_;
  const std::shared_ptr<NcclMember> member_;
};

absl::StatusOr<std::shared_ptr<Fence>> NcclCommunicator::Give(
    std::string what, const Tensor& from, const Tensor& to,
    std::function<ncclResult_t(ncclComm_t, cudaStream_t)> call) {
  auto operation = std::make_shared<NcclOperation>();
  operation->what = std::move(what);
  operation->member = member_;
  operation->call = std::move(call);
  for (const std::shared_ptr<Fence>& ready : {from.ready, to.ready}) {
    // An operation before it in the line is done before it in any case.
    const auto* before = dynamic_cast<const NcclFence*>(ready.get());
    if (ready != nullptr && (before == nullptr || before->line() != line_.get()))
      operation->ready.push_back(ready);
  }
  operation->uses = {from, to};
  if (absl::Status s = line_->Append(operation); !s.ok()) return s;
  return std::make_shared<NcclFence>(line_, std::move(operation));
}

absl::StatusOr<std::shared_ptr<Fence>> NcclCommunicator::AllReduce(const Tensor& from, const Tensor& to) {
  const int64_t n = ElementsOf(from);
  if (absl::Status s = CheckFlat(from, n, "what is summed"); !s.ok()) return s;
  if (absl::Status s = CheckFlat(to, n, "the sum"); !s.ok()) return s;
  const void* const source = from.data;
  void* const target = to.data;
  return Give(absl::StrCat("the all-reduce of ", n, " elements"), from, to,
              [=](ncclComm_t comm, cudaStream_t stream) {
                return ncclAllReduce(source, target, static_cast<size_t>(n), ncclFloat32, ncclSum, comm,
                                     stream);
              });
}

absl::Status NcclCommunicator::CheckSlices(const Tensor& whole, const Tensor& slice,
                                           const std::vector<int64_t>& slices) const {
  if (slices.size() != member_->ranks.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there are %d slices for %d members", slices.size(), member_->ranks.size()));
  }
  const int64_t all = std::accumulate(slices.begin(), slices.end(), int64_t{0});
  if (absl::Status s = CheckFlat(whole, all, "what the slices make"); !s.ok()) return s;
  return CheckFlat(slice, slices[member_->self], "this member's slice");
}

bool AllEqual(const std::vector<int64_t>& slices) {
  return std::all_of(slices.begin(), slices.end(), [&](int64_t n) { return n == slices.front(); });
}

// Starts one operation for each member's slice, all of them as one. NCCL's own gathers and scatters take
// equal slices, and ours differ.
template <typename Each>
ncclResult_t Grouped(const std::vector<int64_t>& slices, Each each) {
  ncclResult_t result = ncclGroupStart();
  int64_t offset = 0;
  for (size_t i = 0; i < slices.size(); offset += slices[i++]) {
    if (result == ncclSuccess && slices[i] > 0)
      result = each(static_cast<int>(i), offset, static_cast<size_t>(slices[i]));
    if (result == ncclInProgress) result = ncclSuccess;  // the group's end returns the error
  }
  const ncclResult_t end = ncclGroupEnd();
  return result == ncclSuccess ? end : result;
}

absl::StatusOr<std::shared_ptr<Fence>> NcclCommunicator::AllGather(const Tensor& slice, const Tensor& to,
                                                                   const std::vector<int64_t>& slices) {
  if (absl::Status s = CheckSlices(to, slice, slices); !s.ok()) return s;
  const void* const source = slice.data;
  float* const target = static_cast<float*>(to.data);
  return Give(absl::StrCat("the all-gather of ", ElementsOf(to), " elements"), slice, to,
              [=](ncclComm_t comm, cudaStream_t stream) {
                if (AllEqual(slices)) {
                  return ncclAllGather(source, target, static_cast<size_t>(slices.front()), ncclFloat32, comm,
                                       stream);
                }
                return Grouped(slices, [&](int member, int64_t offset, size_t n) {
                  return ncclBroadcast(source, target + offset, n, ncclFloat32, member, comm, stream);
                });
              });
}

absl::StatusOr<std::shared_ptr<Fence>> NcclCommunicator::ReduceScatter(const Tensor& from,
                                                                       const Tensor& slice,
                                                                       const std::vector<int64_t>& slices) {
  if (absl::Status s = CheckSlices(from, slice, slices); !s.ok()) return s;
  const float* const source = static_cast<const float*>(from.data);
  void* const target = slice.data;
  return Give(absl::StrCat("the reduce-scatter of ", ElementsOf(from), " elements"), from, slice,
              [=](ncclComm_t comm, cudaStream_t stream) {
                if (AllEqual(slices)) {
                  return ncclReduceScatter(source, target, static_cast<size_t>(slices.front()), ncclFloat32,
                                           ncclSum, comm, stream);
                }
                return Grouped(slices, [&](int member, int64_t offset, size_t n) {
                  return ncclReduce(source + offset, target, n, ncclFloat32, ncclSum, member, comm, stream);
                });
              });
}

class NcclLibrary final : public CommunicationLibrary {
 public:
  NcclLibrary(int device, StreamWait wait) : line_(std::make_shared<NcclLine>(device, std::move(wait))) {
    int version = 0;
    if (ncclGetVersion(&version) == ncclSuccess)
      name_ = absl::StrCat("nccl ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }

  const std::string& name() const override { return name_; }

  absl::StatusOr<std::string> NewGroupId() override {
    ncclUniqueId id;
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) return NcclError(result, nullptr, "making the id of a group");
    return std::string(id.internal, sizeof id.internal);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(const std::string& id, const std::vector<Rank>& members,
                                                     int self, int64_t deadline_ns,
                                                     int64_t operation_ns) override {
    ncclUniqueId unique;
    if (id.size() != sizeof unique.internal) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the id of a group has %d bytes, not %d", id.size(), sizeof unique.internal));
    }
    if (self < 0 || self >= static_cast<int>(members.size())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a group of %d members has no member %d", members.size(), self));
    }
    std::memcpy(unique.internal, id.data(), sizeof unique.internal);
    auto member = line_->Join(unique, members, self, deadline_ns, operation_ns);
    if (!member.ok()) return member.status();
    return std::make_unique<NcclCommunicator>(line_, *std::move(member));
  }

 private:
  std::string name_ = "nccl";
  const std::shared_ptr<NcclLine> line_;
};

}  // namespace

std::unique_ptr<CommunicationLibrary> CreateNcclLibrary(int device, StreamWait wait) {
  return std::make_unique<NcclLibrary>(device, std::move(wait));
}

}  // namespace weft
