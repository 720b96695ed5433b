#include "base/deflate.h"

#include <libdeflate.h>

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/require.h"

namespace weft {
namespace {

constexpr int kLevel = 6;  // of 12; zlib's default

using Compressor = std::unique_ptr<libdeflate_compressor, decltype(&libdeflate_free_compressor)>;
using Decompressor = std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)>;

}  // namespace

uint32_t AddToCrc32(uint32_t crc, const void* data, size_t bytes) {
  return bytes == 0 ? crc : libdeflate_crc32(crc, data, bytes);
}

std::string Deflate(absl::string_view text) {
  const Compressor compressor(libdeflate_alloc_compressor(kLevel), &libdeflate_free_compressor);
  Require(compressor != nullptr, "libdeflate has memory to begin");
  std::string deflated(libdeflate_zlib_compress_bound(compressor.get(), text.size()), '\0');
  const size_t bytes =
      libdeflate_zlib_compress(compressor.get(), text.data(), text.size(), deflated.data(), deflated.size());
  Require(bytes > 0, "what libdeflate makes fits into the bound that it gives");
  deflated.resize(bytes);
  return deflated;
}

absl::StatusOr<std::string> Inflate(absl::string_view deflated, size_t most) {
  const Decompressor decompressor(libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  Require(decompressor != nullptr, "libdeflate has memory to begin");
  // The form does not say how long the text is.
  std::string text(std::min(most, 4 * deflated.size() + 64), '\0');
  while (true) {
    size_t bytes = 0;
    const libdeflate_result result = libdeflate_zlib_decompress(
        decompressor.get(), deflated.data(), deflated.size(), text.data(), text.size(), &bytes);
    if (result == LIBDEFLATE_SUCCESS) {
      text.resize(bytes);
      return text;
    }
    if (result != LIBDEFLATE_INSUFFICIENT_SPACE)
      return absl::InvalidArgumentError("is no whole text in the form of zlib");
    if (text.size() == most)
      return absl::InvalidArgumentError(absl::StrCat("has more than ", most, " bytes when it is inflated"));
    const size_t more = std::min(most, 2 * text.size());
    text = {};  // before the next one is there
    text.resize(more);
  }
}

}  // namespace weft
