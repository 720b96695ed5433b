// Lists every placement that takes a cyclic rule, for tests that go through all of them.
#ifndef WEFT_TESTS_UNIT_CYCLIC_PLACEMENTS_H_
#define WEFT_TESTS_UNIT_CYCLIC_PLACEMENTS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft {

using Parameters = std::map<std::string, std::string>;

struct Base {
  std::string name;
  Parameters parameters;
};

// Returns every family that takes a rule, with n ranks (cdp_mp with more, of which n are busy).
inline std::vector<Base> BasesOf(int n) {
  const std::string all = absl::StrCat(n);
  std::vector<Base> bases = {{"ddp", {}},
                             {"fsdp", {}},
                             {"fsdp", {{"residency", "migrating"}}},
                             {"gpipe", {}},
                             {"1f1b", {}},
                             {"cdp_mp", {}},
                             {"lpp", {{"groups", "1"}, {"ranks", all}}},
                             {"lpp", {{"groups", all}, {"ranks", "1"}}}};
  if (n % 2 == 0) bases.push_back({"lpp", {{"groups", "2"}, {"ranks", absl::StrCat(n / 2)}}});
  return bases;
}

inline Schedule Ruled(const Base& base, const std::string& rule, int n) {
  auto schedule = MakeSchedule(base.name, base.parameters, n, n);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  const absl::Status ruled = ApplyRule(rule, base.name, &*schedule);
  EXPECT_TRUE(ruled.ok()) << ruled;
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
  return *std::move(schedule);
}

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_CYCLIC_PLACEMENTS_H_
