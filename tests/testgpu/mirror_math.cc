#include "tests/testgpu/mirror_math.h"

#include <type_traits>

#include "tests/testgpu/device_memory.h"
#include "tests/testgpu/thread_state.h"
#include "worker/shell/compute/sum_of_squares.h"

namespace weft::testgpu {
namespace {

// Checks a call's buffers, one after the other, and says where their bytes are.
class Buffers {
 public:
  explicit Buffers(const char* what) : what_(what) {}

  // Written if T is not const. Null for null.
  template <typename T>
  T* At(T* data, int64_t n) {
    if constexpr (std::is_void_v<T>) {
      Check(data, static_cast<size_t>(n), !std::is_const_v<T>);
    } else {
      Check(data, static_cast<size_t>(n) * sizeof(T), !std::is_const_v<T>);
    }
    return DeviceMemory::Instance().Mirror(data);
  }
  std::vector<FlatPiece> At(std::vector<FlatPiece> pieces) {
    for (FlatPiece& piece : pieces) {
      const auto size =
          static_cast<int64_t>(piece.type == DataType::kBFloat16 ? sizeof(BFloat16) : sizeof(float));
      piece.data = At(piece.data, piece.n * size);
    }
    return pieces;
  }
  bool ok() const { return ok_; }

 private:
  void Check(const void* data, size_t bytes, bool writes) {
    if (data != nullptr && ok_) ok_ = Touch(what_, data, bytes, writes).ok();
  }

  const char* const what_;
  bool ok_ = true;
};

constexpr auto kLimbs = static_cast<int64_t>(SumOfSquares::kLimbs);

int64_t EndOf(const std::vector<FlatPiece>& pieces) {
  return pieces.empty() ? 0 : pieces.back().offset + pieces.back().n;
}

}  // namespace

void MirrorMath::Zero(void* to, size_t bytes) const {
  Buffers at("Zero");
  void* const out = at.At(to, static_cast<int64_t>(bytes));
  if (at.ok()) host_.Zero(out, bytes);
}

void MirrorMath::Copy(void* to, const void* from, size_t bytes) const {
  Buffers at("Copy");
  void* const out = at.At(to, static_cast<int64_t>(bytes));
  const void* const in = at.At(from, static_cast<int64_t>(bytes));
  if (at.ok()) host_.Copy(out, in, bytes);
}

void MirrorMath::Add(float* sum, const float* x, int64_t n) const {
  Buffers at("Add");
  float* const out = at.At(sum, n);
  const float* const in = at.At(x, n);
  if (at.ok()) host_.Add(out, in, n);
}

void MirrorMath::AddPieces(const std::vector<FlatPiece>& pieces, float* sum) const {
  Buffers at("AddPieces");
  const std::vector<FlatPiece> in = at.At(pieces);
  float* const out = at.At(sum, EndOf(pieces));
  if (at.ok()) host_.AddPieces(in, out);
}

void MirrorMath::WritePieces(const std::vector<FlatPiece>& pieces, float* out, int64_t elements) const {
  Buffers at("WritePieces");
  const std::vector<FlatPiece> in = at.At(pieces);
  float* const to = at.At(out, elements);
  if (at.ok()) host_.WritePieces(in, to, elements);
}

void MirrorMath::Narrow(BFloat16* out, const float* x, int64_t n) const {
  Buffers at("Narrow");
  BFloat16* const to = at.At(out, n);
  const float* const in = at.At(x, n);
  if (at.ok()) host_.Narrow(to, in, n);
}

void MirrorMath::Sgd(const SgdStep& step, const float* weights, float* out, const float* gradient,
                     float* momentum, const float* factor, int64_t n) const {
  Buffers at("Sgd");
  const float *const w = at.At(weights, n), *const g = at.At(gradient, n), *const f = at.At(factor, 1);
  float *const to = at.At(out, n), *const m = at.At(momentum, n);
  if (at.ok()) host_.Sgd(step, w, to, g, m, f, n);
}

void MirrorMath::AdamW(const AdamWStep& step, const float* weights, float* out, const float* gradient,
                       float* mean, float* square, const float* factor, int64_t n) const {
  Buffers at("AdamW");
  const float *const w = at.At(weights, n), *const g = at.At(gradient, n), *const f = at.At(factor, 1);
  float *const to = at.At(out, n), *const m = at.At(mean, n), *const s = at.At(square, n);
  if (at.ok()) host_.AdamW(step, w, to, g, m, s, f, n);
}

void MirrorMath::MoveAverage(const AverageStep& step, const float* average, float* out, const float* sum,
                             int64_t n) const {
  Buffers at("MoveAverage");
  const float *const a = at.At(average, n), *const s = at.At(sum, n);
  float* const to = at.At(out, n);
  if (at.ok()) host_.MoveAverage(step, a, to, s, n);
}

void MirrorMath::AddSquares(uint64_t* limbs, const float* x, int64_t n) const {
  Buffers at("AddSquares");
  uint64_t* const to = at.At(limbs, kLimbs);
  const float* const in = at.At(x, n);
  if (at.ok()) host_.AddSquares(to, in, n);
}

void MirrorMath::AddSums(uint64_t* limbs, const uint64_t* other) const {
  Buffers at("AddSums");
  uint64_t* const to = at.At(limbs, kLimbs);
  const uint64_t* const in = at.At(other, kLimbs);
  if (at.ok()) host_.AddSums(to, in);
}

void MirrorMath::ClipFactor(float* factor, const uint64_t* limbs, double most) const {
  Buffers at("ClipFactor");
  float* const to = at.At(factor, 1);
  const uint64_t* const in = at.At(limbs, kLimbs);
  if (at.ok()) host_.ClipFactor(to, in, most);
}

void MirrorMath::Drop(const DropoutMask& mask, const uint64_t* seed, const void* x, void* out, int64_t n,
                      DataType type) const {
  Buffers at("Drop");
  const int64_t bytes = n * static_cast<int64_t>(ElementBytes(type));
  const uint64_t* const own = at.At(seed, 1);
  const void* const in = at.At(x, bytes);
  void* const to = at.At(out, bytes);
  if (at.ok()) host_.Drop(mask, own, in, to, n, type);
}

void MirrorMath::WriteNumbers(uint64_t* to, const uint64_t* numbers, int64_t count) const {
  Buffers at("WriteNumbers");
  uint64_t* const out = at.At(to, count);
  if (at.ok()) host_.WriteNumbers(out, numbers, count);
}

}  // namespace weft::testgpu
