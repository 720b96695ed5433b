#include "schedules/candidates.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "schedules/families.h"

namespace weft {
namespace {

std::vector<int> Divisors(int n) {
  std::vector<int> divisors;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

bool Has(const Family& family, const char* parameter) {
  return std::any_of(family.parameters.begin(), family.parameters.end(),
                     [&](const FamilyParameter& p) { return p.name == parameter; });
}

}  // namespace

std::vector<Candidate> Candidates(int stages, int microbatches) {
  std::vector<Candidate> all;
  for (const Family& family : Families()) {
    if (family.reads_old_weights) continue;
    if (Has(family, "groups")) {
      for (int groups : Divisors(microbatches)) {
        for (int ranks : Divisors(stages)) {
          const bool other_name = groups == 1 || (ranks == 1 && groups == microbatches);
          if (other_name || groups * ranks > std::max(stages, microbatches)) continue;
          all.push_back({family.name, {{"groups", absl::StrCat(groups)}, {"ranks", absl::StrCat(ranks)}}});
        }
      }
    } else if (Has(family, "ranks")) {
      for (int ranks : Divisors(stages)) {
        if (ranks < stages) all.push_back({family.name, {{"ranks", absl::StrCat(ranks)}}});
      }
    } else {
      all.push_back({family.name, {}});
      for (const FamilyParameter& p : family.parameters) {
        if (p.needs_rule) continue;
        for (size_t i = 1; i < p.values.size(); ++i) all.push_back({family.name, {{p.name, p.values[i]}}});
      }
    }
  }
  return all;
}

}  // namespace weft
