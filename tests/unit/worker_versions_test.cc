// Tests which versions of a stage's weights the worker core holds, and for how long.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/families/families.h"
#include "schedules/sync/held_versions.h"
#include "tests/unit/one_process.h"
#include "tests/unit/without_terms.h"
#include "worker/core/worker_core.h"

namespace weft::worker_versions_test {
namespace {

struct OldWeights {
  std::string name, rule;
  int microbatches;
};

// A rank holds the newest version of a stage's weights and those that a job which has not ended reads, and,
// if it saves the stage, those that jobs behind the last step would: no more, and for no longer, in whatever
// order jobs end.
TEST_F(OneProcess, OldVersions_AreHeldUntilTheirLastReaderHasEnded) {
  constexpr int kStages = 3, kSteps = 5;
  using Place = std::pair<Rank, int>;  // and stage
  const std::vector<OldWeights> cases = {{"gpipe", "cdp_v1", 3},       {"ddp", "cdp_v1", 3},
                                         {"ddp", "cdp_v2", 3},         {"fsdp", "cdp_v2", 3},
                                         {"1f1b", "sync", 4},          {"pipedream", "sync", 1},
                                         {"pipedream_2bw", "sync", 4}, {"pipedream_2bw", "sync", 1}};
  for (const OldWeights& c : cases) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(c.name + ", " + c.rule + ", seed " + std::to_string(seed));
      Schedule schedule = *MakeSchedule(c.name, {}, kStages, c.microbatches);
      ASSERT_TRUE(ApplyRule(c.rule, c.name, &schedule).ok());
      Begin({WithoutTerms(schedule), kSteps});
      const Graph graph(WithoutTerms(schedule));
      std::map<Place, std::map<int, int>> readers;  // that have not ended, by version
      std::map<Place, std::set<int>> held, last;
      for (int s = 0; s < kStages; ++s) {
        for (size_t m = 0; m < graph.members(s).size(); ++m) {
          const Place place = {graph.members(s)[m], s};
          held[place] = {0};
          const Holder& holder = graph.protocol(s).holder(static_cast<int>(m));
          last[place].insert(kSteps - holder.installs_late);
          // The versions that the last update begins with are put aside before it.
          for (int v = kSteps - schedule.MaxStaleness(s); holder.saves && v < kSteps - 1; ++v) {
            last[place].insert(v);
            ++readers[place][v];
          }
        }
      }
      const auto claims = ClaimOrder(graph)->front();
      WorkerEffects out;
      for (int step = 0; step < kSteps; ++step) {
        for (Rank r = 0; r < schedule.ranks; ++r) {
          std::vector<Job> jobs = claims[r];
          for (Job& j : jobs) {
            j.step = step;
            if (HasMicrobatch(j.kind)) ++readers[{schedule.weights(j), j.stage}][graph.VersionOf(j)];
          }
          core_->OnMessage(2, GrantOf(r, jobs), &out);
        }
      }
      std::mt19937 random(seed);
      std::vector<StartEffect> running;
      std::map<Place, bool> keeps;
      int most = 0;
      for (int64_t now = 10;; now += 3) {
        for (const auto& s : Only<StartEffect>(out)) {
          running.push_back(s);
          if (s.job.kind != JobKind::kUpdate || !s.last()) continue;
          keeps[{s.rank, s.job.stage}] = s.leaves.keeps_old();
          const Protocol& protocol = graph.protocol(s.job.stage);
          const bool makes = s.version < protocol.VersionBehind(s.job);
          EXPECT_EQ(makes ? s.version + 1 : 0, protocol.VersionBehind(s.job));
          EXPECT_EQ(s.leaves.keeps_old(), (makes && readers[{s.rank, s.job.stage}][s.version] > 0))
              << Describe(s.job);
          EXPECT_EQ(s.leaves.old == OldVersion::kPutAside,
                    s.job.step == kSteps - 1 && protocol.holder(s.job.member).saves &&
                        schedule.MaxStaleness(s.job.stage) > 0 && !s.leaves.keeps_old())
              << Describe(s.job);
        }
        out.clear();
        if (running.empty()) break;
        std::swap(running[random() % running.size()], running.back());
        const StartEffect s = running.back();
        running.pop_back();
        core_->OnJobDone(now + 2, {s.rank, s.job, now, now + 1, s.last(), {}}, &out);
        if (s.last() && HasMicrobatch(s.job.kind))
          --readers[{schedule.weights(s.job), s.job.stage}][graph.VersionOf(s.job)];
        if (s.last() && s.job.kind == JobKind::kUpdate) {
          std::set<int>& of_stage = held[{s.rank, s.job.stage}];
          if (!keeps[{s.rank, s.job.stage}]) of_stage.erase(s.version);
          EXPECT_TRUE(of_stage.insert(graph.protocol(s.job.stage).VersionBehind(s.job)).second);
        }
        for (const auto& drop : Only<DropEffect>(out)) {
          EXPECT_EQ((held[{drop.rank, drop.stage}].erase(drop.version)), 1u)
              << "version " << drop.version << " of stage " << drop.stage << " on rank " << drop.rank;
        }
        for (const auto& [place, versions] : held) {
          for (const int v : versions) {
            EXPECT_TRUE(v == *versions.rbegin() || readers[place][v] > 0)
                << "after " << Describe(s.job) << " rank " << place.first << " still holds version " << v
                << " of stage " << place.second;
          }
          EXPECT_LE(static_cast<int>(versions.size()), MaxVersions(graph, place.second, place.first));
          most = std::max(most, static_cast<int>(versions.size()));
        }
      }
      EXPECT_EQ(held, last);
      int peak = 0;
      for (Rank r = 0; r < schedule.ranks; ++r) {
        peak = std::max(peak, core_->peak_weight_versions(r));
        int versions = 0;
        for (const auto& [place, of_stage] : last) {
          if (place.first == r) versions = std::max(versions, static_cast<int>(of_stage.size()));
        }
        EXPECT_EQ(core_->weight_versions(r), versions);
      }
      EXPECT_EQ(peak, most);
    }
  }
}

}  // namespace
}  // namespace weft::worker_versions_test
