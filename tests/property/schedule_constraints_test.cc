// Every family over random sizes and parameters, whether they fit it or not: what its page promises is made
// and sound, everything else is refused with the reason.
#include <map>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "schedules/sync/protocol.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_constraints_test {
namespace {

struct Sizes {
  int stages, microbatches;
  int ranks = 0, groups = 0, group = 0;
};

// A part of the message that refuses the sizes; empty where the family must take them. Written down here once
// more, from the pages of docs/schedules.
std::string Constraint(const std::string& family, const Sizes& n) {
  if (family == "ddp") return n.ranks > n.microbatches ? "leave ranks without one" : "";
  if (family == "lpp" || family == "fslpp") {
    if (n.groups > n.microbatches) return absl::StrCat("use at most ", n.microbatches, " groups");
    if (n.ranks > n.stages) return absl::StrCat("use at most ", n.stages, " ranks");
    return "";
  }
  if (family == "depth_first" || family == "breadth_first" || family == "interleaved") {
    if (n.stages % n.ranks != 0 || n.stages == n.ranks) return "must be 2, 3, .. times the number of ranks";
    if (family != "interleaved") return "";
    if (n.microbatches < n.ranks) return "at least as many micro-batches as ranks";
    if (n.group < n.ranks || n.group > n.microbatches) return absl::StrCat("group=", n.group);
    const int rest = n.microbatches % n.group;
    return rest != 0 && rest < n.ranks ? absl::StrCat("a last group of ", rest) : "";
  }
  if (family == "zb_v" || family == "v_half" || family == "v_min")
    return n.stages % 2 != 0 ? "even number" : "";
  if (family == "dualpipe" || family == "dualpipe_v") {
    if (n.stages % 2 != 0) return "even number";
    const int least = family == "dualpipe" ? 2 * n.stages : n.stages;
    return n.microbatches % 2 != 0 || n.microbatches < least ? absl::StrCat("at least 2 W = ", least) : "";
  }
  if (family == "pipedream") return n.microbatches != 1 ? "a step has one micro-batch" : "";
  if (family == "cdp_mp" && n.stages != n.microbatches) return "must be equal";
  if (family == "cdp_mp") return n.stages > 10 ? "use fewer stages" : "";
  return "";
}

std::map<std::string, std::string> Parameters(const Family& family, const Sizes& sizes) {
  std::map<std::string, std::string> parameters;
  for (const FamilyParameter& p : family.parameters) {
    if (p.name == "ranks") parameters[p.name] = absl::StrCat(sizes.ranks);
    if (p.name == "groups") parameters[p.name] = absl::StrCat(sizes.groups);
    if (p.name == "group") parameters[p.name] = absl::StrCat(sizes.group);
  }
  return parameters;
}

// Returns whether the family took the rule with these sizes.
bool ExpectRuleWhereSizesAreTheSame(const Family& family, Schedule schedule) {
  // cdp_mp has its own number of ranks.
  const bool same = family.name == "cdp_mp" ||
                    (schedule.stages == schedule.microbatches && schedule.stages == schedule.ranks &&
                     !schedule.sync->CountHolders(0).has_value());
  const absl::Status ruled = ApplyRule("cdp_v2", family.name, &schedule);
  EXPECT_EQ(ruled.ok(), family.takes_rules && same) << ruled;
  if (!ruled.ok()) {
    EXPECT_TRUE(absl::StrContains(ruled.message(), family.name)) << ruled;
    return false;
  }
  EXPECT_TRUE(CheckSchedule(WithoutTerms(schedule)).ok()) << CheckSchedule(WithoutTerms(schedule));
  return true;
}

TEST(Constraints, RandomSizes_AreSoundOrRefusedWithTheReason) {
  std::mt19937_64 rng(1);
  const auto pick = [&](int from, int to) { return from + static_cast<int>(rng() % (to - from + 1)); };
  for (const Family& family : Families()) {
    int sound = 0, refused = 0, ruled = 0;
    for (int i = 0; i < 300; ++i) {
      Sizes sizes = {pick(1, 12), pick(1, 24), pick(1, 6), pick(1, 12), pick(1, 24)};
      // Sizes that chance hardly makes.
      if (i % 3 == 0 && family.name == "pipedream") sizes.microbatches = 1;
      if (i % 3 == 0 && family.takes_rules) sizes.microbatches = sizes.stages;
      SCOPED_TRACE(absl::StrCat(family.name, " S=", sizes.stages, " B=", sizes.microbatches,
                                " ranks=", sizes.ranks, " groups=", sizes.groups, " group=", sizes.group));
      const std::string constraint = Constraint(family.name, sizes);
      const auto schedule =
          MakeSchedule(family.name, Parameters(family, sizes), sizes.stages, sizes.microbatches);
      if (constraint.empty()) {
        ++sound;
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        ASSERT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
        ruled += ExpectRuleWhereSizesAreTheSame(family, *schedule);
      } else {
        ++refused;
        ASSERT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument) << schedule.status();
        ASSERT_TRUE(absl::StrContains(schedule.status().message(), constraint)) << schedule.status();
        ASSERT_TRUE(absl::StrContains(schedule.status().message(), family.name)) << schedule.status();
      }
    }
    EXPECT_GT(sound, 10) << family.name;
    EXPECT_EQ(ruled > 0, family.takes_rules) << family.name;
    // Families without sizes to refuse are the plain ones.
    const bool plain =
        (Parameters(family, {}).empty() && family.name != "pipedream" && family.name != "cdp_mp") ||
        family.name == "fsdp" || family.name == "periodic";
    if (!plain) {
      EXPECT_GT(refused, 10) << family.name;
    }
  }
}

TEST(Constraints, SizesAndParametersThatAreNone_AreRefused) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    const Sizes sizes = {8, 16, 4, 2, 4};
    auto parameters = Parameters(family, sizes);
    const int microbatches = family.name == "pipedream" ? 1 : family.name == "cdp_mp" ? 8 : 16;
    ASSERT_TRUE(MakeSchedule(family.name, parameters, 8, microbatches).ok());
    for (const auto& [name, value] : parameters) {
      for (const char* wrong : {"0", "-1", "1.5", "two", "", "99999999999999999999"}) {
        auto changed = parameters;
        changed[name] = wrong;
        const auto status = MakeSchedule(family.name, changed, 8, microbatches).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
            << name << "=" << wrong << ": " << status;
        EXPECT_TRUE(absl::StrContains(status.message(), name)) << status;
      }
    }
    parameters["no_such"] = "1";
    EXPECT_TRUE(absl::StrContains(MakeSchedule(family.name, parameters, 8, microbatches).status().message(),
                                  "no_such"));
  }
}

}  // namespace
}  // namespace weft::schedule_constraints_test
