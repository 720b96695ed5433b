#include "run/graphs_text.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "base/deflate.h"
#include "nlohmann/json.hpp"
#include "run/json_text.h"

namespace weft {
namespace {

// Bytes of graphs that a specification has as they are, as older releases read them: what leaves room for the
// rest of a specification, which may have 1 MiB.
constexpr size_t kPlainBytes = size_t{960} << 10;

}  // namespace

nlohmann::json PackGraphs(const nlohmann::json& graphs) {
  const std::string text = graphs.dump();
  if (text.size() <= kPlainBytes) return graphs;
  return absl::Base64Escape(Deflate(text));
}

absl::StatusOr<nlohmann::json> UnpackGraphs(const nlohmann::json& packed) {
  if (!packed.is_string()) return packed;
  std::string deflated;
  if (!absl::Base64Unescape(packed.get_ref<const std::string&>(), &deflated))
    return absl::InvalidArgumentError("is no base64");
  const absl::StatusOr<std::string> text = Inflate(deflated, kMaxGraphsBytes);
  if (!text.ok()) return text.status();
  return ParseJson(*text);
}

}  // namespace weft
