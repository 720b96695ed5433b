#include <algorithm>
#include <cstdint>

#include "worker/shell/cuda/flat_formulas.h"
#include "worker/shell/cuda/flat_kernels.h"
#include "worker/shell/cuda/vector_access.h"

// Compiled with weft_exact_arithmetic (flat_formulas.h says what that means).
//
// These kernels are bound by memory: each thread moves 16 bytes an access where the pointers allow it, and a
// grid of a few blocks a processor strides over the buffer.

namespace weft::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 2048;

// Runs block `block` of the `blocks` that run op.At<4>(i) for whole groups of four if `wide`, and op.At<1>(i)
// for the rest.
template <typename Op>
__device__ void Stride(const Op& op, int64_t n, bool wide, unsigned block, unsigned blocks) {
  const int64_t first = int64_t{block} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{blocks} * blockDim.x;
  const int64_t grouped = wide ? n / 4 * 4 : 0;
  for (int64_t i = first * 4; i < grouped; i += step * 4) op.template At<4>(i);
  for (int64_t i = grouped + first; i < n; i += step) op.template At<1>(i);
}

template <typename Op>
__global__ void __launch_bounds__(kThreads) ForEach(const Op op, const int64_t n, const bool wide) {
  Stride(op, n, wide, blockIdx.x, gridDim.x);
}

unsigned BlocksFor(int64_t n) {
  const int64_t each = int64_t{kThreads} * 4;
  return static_cast<unsigned>(std::min((n + each - 1) / each, kMaxBlocks));
}

template <typename Op>
cudaError_t Launch(cudaStream_t stream, const Op& op, int64_t n, bool wide) {
  if (n <= 0) return cudaSuccess;
  WEFT_LAUNCH(ForEach, BlocksFor(n), kThreads, stream, op, n, wide);
  return cudaGetLastError();
}

struct AddOp {
  float* sum;
  const float* x;
  template <int L>
  __device__ void At(int64_t i) const {
    Floats<L> total = Load<L>(sum + i);
    const Floats<L> more = Load<L>(x + i);
    for (int k = 0; k < L; ++k) total.v[k] += more.v[k];
    Store<L>(sum + i, total);
  }
};

struct NarrowOp {
  uint16_t* out;
  const float* x;
  template <int L>
  __device__ void At(int64_t i) const {
    const Floats<L> from = Load<L>(x + i);
    Halves<L> to;
    for (int k = 0; k < L; ++k) to.v[k] = flat::Narrow(from.v[k]);
    Store<L>(out + i, to);
  }
};

// `w` and `out` may be one buffer: all lanes are loaded before any is stored.
struct SgdOp {
  SgdStep step;
  const float* weights;
  float* out;
  const float* gradient;
  float* momentum;  // null where there is none
  const float* factor;
  template <int L>
  __device__ void At(int64_t i) const {
    const float f = factor != nullptr ? *factor : 1.0f;
    const bool reads = momentum != nullptr && !step.first;
    Floats<L> w = Load<L>(weights + i);
    const Floats<L> g = Load<L>(gradient + i);
    Floats<L> m = reads ? Load<L>(momentum + i) : Floats<L>{};
    for (int k = 0; k < L; ++k) {
      const flat::SgdElement next = flat::ApplySgd(step, w.v[k], g.v[k], m.v[k], f);
      w.v[k] = next.weight;
      m.v[k] = next.momentum;
    }
    if (momentum != nullptr) Store<L>(momentum + i, m);
    Store<L>(out + i, w);
  }
};

struct AdamWOp {
  AdamWStep step;
  const float* weights;
  float* out;
  const float* gradient;
  float* mean;
  float* square;
  const float* factor;
  template <int L>
  __device__ void At(int64_t i) const {
    const float f = factor != nullptr ? *factor : 1.0f;
    Floats<L> w = Load<L>(weights + i);
    const Floats<L> g = Load<L>(gradient + i);
    Floats<L> m = Load<L>(mean + i);
    Floats<L> v = Load<L>(square + i);
    for (int k = 0; k < L; ++k) {
      const flat::AdamWElement next = flat::ApplyAdamW(step, w.v[k], g.v[k], m.v[k], v.v[k], f);
      w.v[k] = next.weight;
      m.v[k] = next.mean;
      v.v[k] = next.square;
    }
    Store<L>(mean + i, m);
    Store<L>(square + i, v);
    Store<L>(out + i, w);
  }
};

struct AverageOp {
  AverageStep step;
  const float* average;
  float* out;
  const float* sum;
  template <int L>
  __device__ void At(int64_t i) const {
    Floats<L> a = Load<L>(average + i);
    const Floats<L> s = Load<L>(sum + i);
    for (int k = 0; k < L; ++k) a.v[k] = flat::MoveAverage(step, a.v[k], s.v[k]);
    Store<L>(out + i, a);
  }
};

// Returns the mask with its seed. The seed is the same for all threads: one read that all processors keep.
__device__ __forceinline__ DropoutMask Seeded(DropoutMask mask, const uint64_t* seed) {
  if (seed != nullptr) mask.seed = *seed;
  return mask;
}

// Drops numbers of type float, or bfloat16's bits.
template <typename Number>
struct DropOp {
  DropoutMask mask;
  const uint64_t* seed;
  const Number* x;
  Number* out;
  template <int L>
  __device__ void At(int64_t i) const {
    const DropoutMask own = Seeded(mask, seed);
    auto values = Load<L>(x + i);
    for (int k = 0; k < L; ++k) values.v[k] = flat::Drop(own, i + k, values.v[k]);
    Store<L>(out + i, values);
  }
};

// ---- Numbers that travel as an argument of the launch, as pieces do, and are read where they lie.

constexpr int kMaxNumbers = 256;
struct NumberTable {
  uint64_t numbers[kMaxNumbers];
  int count;
};
static_assert(sizeof(NumberTable) + 64 <= 4096);

__global__ void __launch_bounds__(kThreads)
    WriteNumbersKernel(const __grid_constant__ NumberTable table, uint64_t* to) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < table.count) to[i] = table.numbers[i];
}
static_assert(kMaxNumbers <= kThreads);

// ---- Pieces: each has as many blocks as its size asks for, one after the other in one grid. They travel as
// an argument of the launch, of which 4096 bytes are allowed everywhere, one table after the other. The
// argument is read where it lies (__grid_constant__): a copy of it for each thread would cost more than the
// pieces.

struct Entry {
  Piece piece;
  int64_t zeros_from;  // [zeros_from, piece.offset) becomes zero where pieces are written
  unsigned first_block;
};
constexpr int kMaxEntries = 80;
struct PieceTable {
  Entry entries[kMaxEntries];
  int count;
  unsigned blocks;  // number of all blocks
};
static_assert(sizeof(PieceTable) + 64 <= 4096);

// The piece that a block works on, and the block's number among those of the piece.
struct Share {
  int entry;
  unsigned block, blocks;
};
__device__ __forceinline__ Share ShareOf(const PieceTable& table, unsigned block) {
  int first = 0, end = table.count;  // the last entry that begins at or before the block is between them
  while (end - first > 1) {
    const int middle = (first + end) / 2;
    (table.entries[middle].first_block <= block ? first : end) = middle;
  }
  const unsigned begin = table.entries[first].first_block;
  const unsigned next = first + 1 < table.count ? table.entries[first + 1].first_block : table.blocks;
  return {first, block - begin, next - begin};
}

template <int L>
__device__ __forceinline__ Floats<L> LoadPiece(const Piece& piece, int64_t i) {
  if (!piece.bfloat16) return Load<L>(static_cast<const float*>(piece.data) + i);
  const Halves<L> from = Load<L>(static_cast<const uint16_t*>(piece.data) + i);
  Floats<L> to;
  for (int k = 0; k < L; ++k) to.v[k] = flat::Widen(from.v[k]);
  return to;
}

// True if groups of four of the piece are aligned, there and in the buffer.
__device__ bool IsWide(const Piece& piece, const float* buffer) {
  const uintptr_t bytes = piece.bfloat16 ? 8 : 16;
  return reinterpret_cast<uintptr_t>(piece.data) % bytes == 0 &&
         reinterpret_cast<uintptr_t>(buffer + piece.offset) % 16 == 0;
}

template <bool kAdd>
struct PieceOp {
  const Piece& piece;
  float* to;  // place in the buffer where the piece begins
  template <int L>
  __device__ void At(int64_t i) const {
    Floats<L> values = LoadPiece<L>(piece, i);
    if (kAdd) {
      const Floats<L> before = Load<L>(to + i);
      for (int k = 0; k < L; ++k) values.v[k] = before.v[k] + values.v[k];
    }
    Store<L>(to + i, values);
  }
};

struct ZeroOp {
  float* to;
  template <int L>
  __device__ void At(int64_t i) const {
    Store<L>(to + i, Floats<L>{});
  }
};

__global__ void __launch_bounds__(kThreads)
    AddPiecesKernel(const __grid_constant__ PieceTable table, float* sum) {
  const Share share = ShareOf(table, blockIdx.x);
  const Piece& piece = table.entries[share.entry].piece;
  Stride(PieceOp<true>{piece, sum + piece.offset}, piece.n, IsWide(piece, sum), share.block, share.blocks);
}

__global__ void __launch_bounds__(kThreads)
    WritePiecesKernel(const __grid_constant__ PieceTable table, float* out) {
  const Share share = ShareOf(table, blockIdx.x);
  const Entry& entry = table.entries[share.entry];
  Stride(PieceOp<false>{entry.piece, out + entry.piece.offset}, entry.piece.n, IsWide(entry.piece, out),
         share.block, share.blocks);
  Stride(ZeroOp{out + entry.zeros_from}, entry.piece.offset - entry.zeros_from, false, share.block,
         share.blocks);
}

// Fills tables with the pieces and hands each to `launch`.
template <typename Launch>
class Tables {
 public:
  explicit Tables(const Launch& launch) : launch_(launch) { table_.count = 0; }

  void Add(const Piece& piece, int64_t zeros_from) {
    if (table_.count == kMaxEntries) Flush();
    if (table_.count == 0) table_.blocks = 0;
    table_.entries[table_.count++] = {piece, zeros_from, table_.blocks};
    table_.blocks += std::max(1u, BlocksFor(std::max(piece.n, piece.offset - zeros_from)));
  }
  cudaError_t Flush() {
    if (table_.count > 0) launch_(table_);
    table_.count = 0;
    return cudaGetLastError();
  }

 private:
  const Launch& launch_;
  PieceTable table_;
};

// ---- Sums of squares.

// Each thread adds into limbs of its own in shared memory, which lie so that neighbouring threads use
// neighbouring banks; the block adds those up and adds the sums to the result's limbs. Integer additions: any
// order gives the same. Nothing overflows: a part is below 2^32, and a launch adds at most 2^30 squares, so
// that no limb, of a thread, a block or the result (which began below 2^32), reaches 2^30 * 2^32 * 3 < 2^64.
constexpr int kSquareThreads = 128;
constexpr int64_t kMaxSquares = int64_t{1} << 30;

__global__ void __launch_bounds__(kSquareThreads)
    AddSquaresKernel(unsigned long long* limbs, const float* x, const int64_t n) {
  __shared__ uint64_t mine[flat::kSquareLimbs][kSquareThreads];
  const int t = static_cast<int>(threadIdx.x);
  for (int l = 0; l < flat::kSquareLimbs; ++l) mine[l][t] = 0;
  bool finite = true;
  const int64_t step = int64_t{gridDim.x} * kSquareThreads;
  for (int64_t i = int64_t{blockIdx.x} * kSquareThreads + t; i < n; i += step) {
    const flat::Square square = flat::SquareOf(x[i]);
    finite = finite && square.finite;
    // The limbs of an infinite value would lie outside.
    const int limb = square.finite ? square.limb : 0;
    for (int j = 0; j < 3; ++j) mine[limb + j][t] += square.parts[j];
  }
  const bool all_finite = __syncthreads_and(finite) != 0;
  if (t < flat::kSquareLimbs) {
    uint64_t sum = 0;
    for (int i = 0; i < kSquareThreads; ++i) sum += mine[t][(i + t) % kSquareThreads];
    if (sum != 0) atomicAdd(limbs + t, static_cast<unsigned long long>(sum));
  }
  // Nobody adds to the last limb: it gets carries alone.
  if (t == 0 && !all_finite)
    atomicExch(limbs + flat::kLimbs - 1, static_cast<unsigned long long>(flat::kNoNorm));
}

__global__ void CarryKernel(uint64_t* limbs) { flat::Carry(limbs); }
__global__ void AddSumsKernel(uint64_t* limbs, const uint64_t* other) { flat::AddLimbs(limbs, other); }
__global__ void ClipFactorKernel(float* factor, const uint64_t* limbs, const double most) {
  *factor = flat::ClipFactor(limbs, most);
}

static_assert(sizeof(unsigned long long) == sizeof(uint64_t));

}  // namespace

cudaError_t Add(cudaStream_t stream, float* sum, const float* x, int64_t n) {
  return Launch(stream, AddOp{sum, x}, n, Aligned(sum) && Aligned(x));
}

cudaError_t AddPieces(cudaStream_t stream, const Piece* pieces, int64_t count, float* sum) {
  const auto launch = [&](const PieceTable& table) {
    WEFT_LAUNCH(AddPiecesKernel, table.blocks, kThreads, stream, table, sum);
  };
  Tables tables(launch);
  for (int64_t i = 0; i < count; ++i) tables.Add(pieces[i], pieces[i].offset);
  return tables.Flush();
}

cudaError_t WritePieces(cudaStream_t stream, const Piece* pieces, int64_t count, float* out,
                        int64_t elements) {
  const auto launch = [&](const PieceTable& table) {
    WEFT_LAUNCH(WritePiecesKernel, table.blocks, kThreads, stream, table, out);
  };
  Tables tables(launch);
  int64_t written = 0;
  for (int64_t i = 0; i < count; ++i) {
    tables.Add(pieces[i], written);
    written = pieces[i].offset + pieces[i].n;
  }
  // An empty piece makes the zeros behind all pieces.
  if (written < elements) tables.Add(Piece{elements, 0, nullptr, false}, written);
  return tables.Flush();
}

cudaError_t Narrow(cudaStream_t stream, uint16_t* out, const float* x, int64_t n) {
  return Launch(stream, NarrowOp{out, x}, n, Aligned(out, 8) && Aligned(x));
}

cudaError_t Sgd(cudaStream_t stream, const SgdStep& step, const float* weights, float* out,
                const float* gradient, float* momentum, const float* factor, int64_t n) {
  if (step.momentum == 0) momentum = nullptr;
  const bool wide = Aligned(weights) && Aligned(out) && Aligned(gradient) && Aligned(momentum);
  return Launch(stream, SgdOp{step, weights, out, gradient, momentum, factor}, n, wide);
}

cudaError_t AdamW(cudaStream_t stream, const AdamWStep& step, const float* weights, float* out,
                  const float* gradient, float* mean, float* square, const float* factor, int64_t n) {
  const bool wide = Aligned(weights) && Aligned(out) && Aligned(gradient) && Aligned(mean) && Aligned(square);
  return Launch(stream, AdamWOp{step, weights, out, gradient, mean, square, factor}, n, wide);
}

cudaError_t MoveAverage(cudaStream_t stream, const AverageStep& step, const float* average, float* out,
                        const float* sum, int64_t n) {
  return Launch(stream, AverageOp{step, average, out, sum}, n,
                Aligned(average) && Aligned(out) && Aligned(sum));
}

cudaError_t AddSquares(cudaStream_t stream, uint64_t* limbs, const float* x, int64_t n) {
  while (n > 0) {
    const int64_t part = std::min(n, kMaxSquares);
    const int64_t blocks = std::min((part + kSquareThreads - 1) / kSquareThreads, kMaxBlocks);
    WEFT_LAUNCH(AddSquaresKernel, static_cast<unsigned>(blocks), kSquareThreads, stream,
                reinterpret_cast<unsigned long long*>(limbs), x, part);
    WEFT_LAUNCH(CarryKernel, 1, 1, stream, limbs);
    x += part;
    n -= part;
  }
  return cudaGetLastError();
}

cudaError_t AddSums(cudaStream_t stream, uint64_t* limbs, const uint64_t* other) {
  WEFT_LAUNCH(AddSumsKernel, 1, 1, stream, limbs, other);
  return cudaGetLastError();
}

cudaError_t ClipFactor(cudaStream_t stream, float* factor, const uint64_t* limbs, double most) {
  WEFT_LAUNCH(ClipFactorKernel, 1, 1, stream, factor, limbs, most);
  return cudaGetLastError();
}

cudaError_t Drop(cudaStream_t stream, const DropoutMask& mask, const uint64_t* seed, const float* x,
                 float* out, int64_t n) {
  return Launch(stream, DropOp<float>{mask, seed, x, out}, n, Aligned(x) && Aligned(out));
}

cudaError_t DropNarrow(cudaStream_t stream, const DropoutMask& mask, const uint64_t* seed, const uint16_t* x,
                       uint16_t* out, int64_t n) {
  DropoutMask narrow = mask;
  narrow.keep = flat::Widen(flat::Narrow(mask.keep));
  return Launch(stream, DropOp<uint16_t>{narrow, seed, x, out}, n, Aligned(x, 8) && Aligned(out, 8));
}

cudaError_t WriteNumbers(cudaStream_t stream, uint64_t* to, const uint64_t* numbers, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kMaxNumbers) {
    NumberTable table{};
    table.count = static_cast<int>(std::min<int64_t>(count - begin, kMaxNumbers));
    std::copy_n(numbers + begin, table.count, table.numbers);
    WEFT_LAUNCH(WriteNumbersKernel, 1, kThreads, stream, table, to + begin);
  }
  return cudaGetLastError();
}

}  // namespace weft::kernels
