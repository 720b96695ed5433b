#include "worker/shell/torch/data_feed.h"

#include <ATen/ops/empty.h>

#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {

DataFeed::DataFeed(const RunSpec& run, std::unique_ptr<Dataset> data, RankDevice& device,
                   const RankGuard& guard, DataPrefetch::OfStep of_step)
    : run_(run),
      data_(std::move(data)),
      device_(device),
      guard_(guard),
      prefetch_(device.is_host()
                    ? nullptr
                    : std::make_unique<DataPrefetch>([this](const DataPiece& piece) { return Send(piece); },
                                                     std::move(of_step), run.end_step())) {}

at::Tensor DataFeed::WideBuffers::Take(at::IntArrayRef sizes) {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      at::Tensor buffer = std::move(idle_.back());
      idle_.pop_back();
      return buffer;
    }
  }
  return at::empty(sizes, c10::kFloat);
}

void DataFeed::WideBuffers::Give(at::Tensor buffer) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(buffer));
}

at::Tensor DataFeed::NewHost(at::IntArrayRef sizes, c10::ScalarType type) {
  return device_.is_host() ? at::empty(sizes, type) : device_.NewHostTensor(sizes, type);
}

absl::StatusOr<at::Tensor> DataFeed::ReadTargets(const DataPiece& piece) {
  at::Tensor read = NewHost({run_.microbatch_samples() * data_->targets()}, c10::kLong);
  const absl::Status status =
      data_->ReadTargets(run_, piece.step, piece.microbatch, read.mutable_data_ptr<int64_t>());
  if (!status.ok()) return status;
  return read;
}

absl::StatusOr<at::Tensor> DataFeed::ReadInputs(const DataPiece& piece) {
  const c10::ScalarType type = TorchType(data_->input_type());
  const bool narrows = type == c10::kFloat && run_.precision == Precision::kBFloat16;
  const std::array<int64_t, 2> sizes = {run_.microbatch_samples(), data_->inputs()};
  const bool reuses_buffer = narrows && !device_.is_host();
  at::Tensor read = reuses_buffer ? wide_buffers_.Take(sizes) : NewHost(sizes, type);
  const absl::Status status = data_->ReadInputs(run_, piece.step, piece.microbatch, read.mutable_data_ptr());
  if (!status.ok()) return status;
  if (!narrows) return read;
  at::Tensor wide = std::exchange(read, NewHost(sizes, c10::kBFloat16));
  read.copy_(wide);
  if (reuses_buffer) wide_buffers_.Give(std::move(wide));
  return read;
}

// Reads a piece into host memory.
absl::StatusOr<at::Tensor> DataFeed::Read(const DataPiece& piece) {
  return piece.targets ? ReadTargets(piece) : ReadInputs(piece);
}

// Reads a piece and begins to send it to the device. Any thread.
absl::StatusOr<Tensor> DataFeed::Send(const DataPiece& piece) {
  return guard_.Run(
      [&] { return absl::StrFormat("data of micro-batch %d of step %d", piece.microbatch, piece.step); },
      [&]() -> absl::StatusOr<Tensor> {
        const absl::StatusOr<at::Tensor> read = Read(piece);
        return read.ok() ? device_.ToDevice(Unwrap(*read), MemoryClass::kActivations) : read.status();
      });
}

absl::StatusOr<at::Tensor> DataFeed::Take(const DataPiece& piece) {
  if (device_.is_host()) return Read(piece);
  const absl::StatusOr<Tensor> sent = prefetch_->Take(piece);
  if (!sent.ok()) return sent.status();
  return Wrap(device_.Await(*sent), device_.torch_device());
}

}  // namespace weft
