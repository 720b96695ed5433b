// Provides what the transport tests share: tensors with known bytes that count their releases, keys, and a
// clock.
#ifndef WEFT_TESTS_CONFORMANCE_TRANSPORT_FIXTURE_H_
#define WEFT_TESTS_CONFORMANCE_TRANSPORT_FIXTURE_H_

#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/monotonic_clock.h"
#include "worker/shell/transport/transport.h"

namespace weft::testing {

inline constexpr Nanos kSecond = 1'000'000'000;
inline constexpr uint64_t kRun = 7;

inline TensorKey Key(int step, uint64_t epoch = 1) {
  TensorKey key;
  key.run = kRun;
  key.epoch = epoch;
  key.step = step;
  key.stage = 3;
  key.microbatch = step % 8;
  key.producer = 1;
  key.consumer = 2;
  return key;
}

inline TensorShape Bytes(size_t bytes) {
  TensorShape shape;
  shape.type = DataType::kUInt8;
  shape.dims = 1;
  shape.size[0] = static_cast<int64_t>(bytes);
  return shape;
}

// Returns the byte of a place, which depends on the place and on the seed, so that shifted, torn or foreign
// bytes are noticed.
inline uint8_t PatternByte(size_t i, uint32_t seed) {
  return static_cast<uint8_t>((i * 2654435761u) >> 13 ^ (i >> 8) ^ seed * 97);
}
inline void FillPattern(void* data, size_t bytes, uint32_t seed) {
  auto* p = static_cast<uint8_t*>(data);
  for (size_t i = 0; i < bytes; ++i) p[i] = PatternByte(i, seed);
}
inline bool HasPattern(const Tensor& tensor, uint32_t seed) {
  const auto* p = static_cast<const uint8_t*>(tensor.data);
  for (size_t i = 0; i < tensor.bytes; ++i) {
    if (p[i] != PatternByte(i, seed)) return false;
  }
  return true;
}

// Makes a tensor in a segment of its own of `memory`, freed (and counted) when the last reference goes.
inline Tensor MakeTensor(MemorySource& memory, size_t bytes, uint32_t seed, int* released = nullptr) {
  absl::StatusOr<void*> segment = memory.Allocate(bytes);
  if (!segment.ok()) throw std::runtime_error(segment.status().ToString());
  FillPattern(*segment, bytes, seed);
  std::shared_ptr<void> owner(*segment, [&memory, bytes, released](void* p) {
    memory.Free(p, bytes);
    if (released != nullptr) ++*released;
  });
  return Tensor{Bytes(bytes), owner.get(), bytes, owner};
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_TRANSPORT_FIXTURE_H_
