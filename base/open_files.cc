#include "base/open_files.h"

#include <sys/resource.h>

#include <algorithm>

namespace weft {

int64_t RaiseOpenFileLimit() {
  constexpr rlim_t kMax = 1'000'000;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t wanted = std::min(limit.rlim_max, kMax);
  if (limit.rlim_cur < wanted) {
    const rlimit raised = {wanted, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit.rlim_cur = wanted;
  }
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMax));
}

}  // namespace weft
