#include "worker/shell/compute/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace weft {
namespace {

// SplitMix64: the state of number i is seed + i * kGolden.
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15, kFirst = 0xbf58476d1ce4e5b9, kSecond = 0x94d049bb133111eb;

// An element is dropped whose 32 random bits are below.
uint64_t Threshold(double p) { return static_cast<uint64_t>(p * 4294967296.0); }
float Kept(double p) { return static_cast<float>(1 / (1 - p)); }

// The same 64 bits as LibTorch has them.
int64_t Signed(uint64_t bits) { return static_cast<int64_t>(bits); }

// x ^ (x >> bits), without the copies of the sign that a shift brings in, in place.
void XorShifted(at::Tensor& x, int bits) {
  x.bitwise_xor_(x.bitwise_right_shift(bits).bitwise_and_(Signed(~uint64_t{0} >> bits)));
}

}  // namespace

at::Tensor MaskOnHost(at::IntArrayRef sizes, double p, uint64_t seed) {
  at::Tensor mask = at::empty(sizes, c10::kFloat);
  float* const to = mask.mutable_data_ptr<float>();
  const int64_t n = mask.numel();
  const uint64_t threshold = Threshold(p);
  const float keep = Kept(p);
  for (int64_t i = 0; i < n; ++i) {
    uint64_t z = seed + static_cast<uint64_t>(i) * kGolden;
    z = (z ^ (z >> 30)) * kFirst;
    z = (z ^ (z >> 27)) * kSecond;
    to[i] = ((z ^ (z >> 31)) >> 32) < threshold ? 0.0f : keep;
  }
  return mask;
}

at::Tensor MaskByOperations(at::IntArrayRef sizes, double p, uint64_t seed, c10::Device device) {
  const int64_t n = c10::multiply_integers(sizes);
  // Products and sums of int64 wrap.
  at::Tensor z = at::arange(n, c10::TensorOptions().dtype(c10::kLong).device(device));
  z.mul_(Signed(kGolden)).add_(Signed(seed));
  XorShifted(z, 30);
  z.mul_(Signed(kFirst));
  XorShifted(z, 27);
  z.mul_(Signed(kSecond));
  XorShifted(z, 31);
  const at::Tensor bits = z.bitwise_right_shift_(32).bitwise_and_(Signed(0xffffffff));
  return bits.ge_(Signed(Threshold(p))).to(c10::kFloat).mul_(Kept(p)).view(sizes);
}

at::Tensor Drop(const at::Tensor& x, double p, uint64_t seed) {
  const at::Tensor mask =
      x.is_cpu() ? MaskOnHost(x.sizes(), p, seed) : MaskByOperations(x.sizes(), p, seed, x.device());
  return x * mask.to(x.scalar_type());
}

}  // namespace weft
