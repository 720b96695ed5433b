#include "proto/session/run_waits.h"

#include "absl/strings/str_cat.h"

namespace weft {

std::string JobName(const Job& job) {
  constexpr absl::string_view kLetters = "FBIWRU";
  const absl::string_view letter = kLetters.substr(static_cast<size_t>(job.kind), 1);
  std::string name = absl::StrCat(letter, " s", job.stage);
  if (HasMicrobatch(job.kind)) absl::StrAppend(&name, " m", job.microbatch);
  absl::StrAppend(&name, " t", job.step);
  return name;
}

}  // namespace weft
