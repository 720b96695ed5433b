#include "worker/shell/compute/sum_of_squares.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr int kLeastExponent = -298;  // exponent of the square of the smallest denormal
constexpr uint64_t kLimbMask = 0xffffffff;
constexpr int kExponents = 256;  // exponents of a float32; the last one's values are infinite or not numbers

// The sums of squares by exponent. Squares of one exponent are integers of the same scale, so they are added
// as such, without any shift. There are several tables, since neighbouring values often have the same
// exponent, and an addition waits for the one before it.
constexpr int kTables = 4;
struct Bins {
  uint64_t of[kTables][kExponents];
};
// The number of squares below 2^48 that fit a bin.
constexpr int64_t kMaxBin = int64_t{1} << 16;

void AddToBin(float value, uint64_t* bins) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = (bits >> 23) & 0xff;
  const uint64_t mantissa = (bits & 0x7fffff) | (exponent != 0 ? 0x800000 : 0);
  bins[exponent] += mantissa * mantissa;
}

}  // namespace

bool SumOfSquares::Add(const float* values, int64_t n) {
  if (!has_norm()) return false;
  Bins bins;
  while (n > 0) {
    const int64_t block = std::min(n, kTables * kMaxBin);
    std::memset(&bins, 0, sizeof bins);
    int64_t i = 0;
    for (; i + kTables <= block; i += kTables) {
      for (int t = 0; t < kTables; ++t) AddToBin(values[i + t], bins.of[t]);
    }
    for (; i < block; ++i) AddToBin(values[i], bins.of[i % kTables]);
    for (const auto& table : bins.of) {
      if (table[kExponents - 1] != 0) {
        LoseNorm();
        return false;
      }
      for (int e = 0; e < kExponents - 1; ++e) {
        // The values are mantissa * 2^(e - 150), where denormals have the scale of e = 1.
        if (table[e] != 0) AddShifted(table[e], 2 * std::max(e, 1) - 2);
      }
    }
    Carry();
    values += block;
    n -= block;
  }
  return true;
}

void SumOfSquares::Add(const SumOfSquares& other) {
  if (!has_norm() || !other.has_norm()) return LoseNorm();
  for (size_t i = 0; i < kLimbs; ++i) limbs_[i] += other.limbs_[i];
  Carry();
}

void SumOfSquares::LoseNorm() {
  limbs_.fill(0);
  limbs_.back() = kNoNorm;
}

// Adds value * 2^(bits + kLeastExponent).
void SumOfSquares::AddShifted(uint64_t value, int bits) {
  const int limb = bits / 32, shift = bits % 32;
  const uint64_t low = (value & kLimbMask) << shift, high = (value >> 32) << shift;
  limbs_[limb] += low & kLimbMask;
  limbs_[limb + 1] += (low >> 32) + (high & kLimbMask);
  limbs_[limb + 2] += high >> 32;
}

void SumOfSquares::Carry() {
  uint64_t carry = 0;
  for (uint64_t& limb : limbs_) {
    limb += carry;
    carry = limb >> 32;
    limb &= kLimbMask;
  }
}

double SumOfSquares::Value() const {
  if (!has_norm()) return std::numeric_limits<double>::quiet_NaN();
  int top = static_cast<int>(kLimbs) - 1;
  while (top >= 0 && limbs_[top] == 0) --top;
  if (top < 0) return 0;
  const auto limb = [&](int i) { return i >= 0 ? limbs_[i] : 0; };
  // These are the first 64 bits, and in the last of them whether anything follows: rounding to 53 bits sees
  // no more.
  const int zeros = std::countl_zero(static_cast<uint32_t>(limbs_[top]));
  uint64_t head = (limb(top) << 32 | limb(top - 1)) << zeros;
  const uint64_t next = limb(top - 2) << zeros;
  head |= next >> 32;
  bool more = (next & kLimbMask) != 0;
  for (int i = top - 3; i >= 0; --i) more = more || limbs_[i] != 0;
  if (more) head |= 1;
  return std::ldexp(static_cast<double>(head), 32 * (top - 1) - zeros + kLeastExponent);
}

double SumOfSquares::Norm() const { return std::sqrt(Value()); }

absl::Status SumOfSquares::CheckShape(const Tensor& tensor) {
  if (tensor.shape.type == DataType::kInt64 && tensor.bytes == kBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor of ", tensor.bytes, " bytes is not a sum of squares, which has ", kBytes));
}

absl::StatusOr<SumOfSquares> SumOfSquares::FromTensor(const Tensor& tensor) {
  if (absl::Status s = CheckShape(tensor); !s.ok()) return s;
  const SumOfSquares sum = FromLimbs(static_cast<const uint64_t*>(tensor.data));
  SumOfSquares none;
  none.LoseNorm();
  if (sum == none) return sum;
  if (std::any_of(sum.limbs_.begin(), sum.limbs_.end(), [](uint64_t limb) { return limb > kLimbMask; })) {
    return absl::InvalidArgumentError("a sum of squares came with limbs out of range");
  }
  return sum;
}

SumOfSquares SumOfSquares::FromLimbs(const uint64_t* limbs) {
  SumOfSquares sum;
  std::memcpy(sum.limbs_.data(), limbs, kBytes);
  return sum;
}

void SumOfSquares::WriteLimbs(uint64_t* limbs) const { std::memcpy(limbs, limbs_.data(), kBytes); }

float ClipFactor(double norm, double most) { return norm > most ? static_cast<float>(most / norm) : 1.0f; }

}  // namespace weft
