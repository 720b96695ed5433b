// Writes integers to a run of bytes and reads them back: unaligned, little-endian, never past the end.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_BYTE_STREAM_H_
#define WEFT_WORKER_SHELL_TRANSPORT_BYTE_STREAM_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace weft {

static_assert(std::endian::native == std::endian::little,
              "messages are the memory of a little-endian machine");

// Appends to a buffer that the caller made large enough.
class ByteWriter {
 public:
  explicit ByteWriter(char* out) : begin_(out), at_(out) {}
  template <typename T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  size_t size() const { return at_ - begin_; }

 private:
  char* begin_;
  char* at_;
};

// Reads within bounds. Past the end it yields zeros and remembers that.
class ByteReader {
 public:
  explicit ByteReader(absl::string_view in) : at_(in.data()), end_(in.data() + in.size()) {}
  template <typename T>
  T Get() {
    T value{};
    if (static_cast<size_t>(end_ - at_) < sizeof(T)) {
      short_ = true;
      at_ = end_;
    } else {
      std::memcpy(&value, at_, sizeof(T));
      at_ += sizeof(T);
    }
    return value;
  }
  bool short_of_bytes() const { return short_; }
  bool at_end() const { return at_ == end_; }

 private:
  const char* at_;
  const char* end_;
  bool short_ = false;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_BYTE_STREAM_H_
