#include "worker/core/tensor_key.h"

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gtest/gtest.h"
#include "proto/session/messages.h"
#include "schedules/families/families.h"
#include "schedules/graph/graph.h"
#include "tests/unit/without_terms.h"

namespace weft::tensor_key_test {
namespace {

constexpr uint64_t kRun = 7, kEpoch = 3;

// The key alone names what travels between two ranks.
TEST(TensorKey, EdgesBetweenRanks_HaveOneKeyEach) {
  constexpr int kSteps = 3;
  size_t keys = 0;
  for (const Family& family : Families()) {
    const auto schedule = MakeSchedule(family.name, {}, /*stages=*/4, /*microbatches=*/4);
    if (!schedule.ok()) continue;  // sizes that it does not take
    const Graph graph(WithoutTerms(*schedule), kSteps);
    absl::flat_hash_map<TensorKey, Edge> edges;
    std::vector<Edge> inputs;
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < graph.jobs_per_step(); ++i) {
        inputs.clear();
        graph.Predecessors(graph.JobAt(step, i), &inputs);
        for (const Edge& e : inputs) {
          if (graph.RankOf(e.from) == graph.RankOf(e.to)) continue;
          const auto [other, is_new] = edges.emplace(TensorKey::OfEdge(kRun, kEpoch, graph, e), e);
          EXPECT_TRUE(is_new) << family.name << ": " << Describe(other->first) << " is of "
                              << Describe(other->second.to) << " and of " << Describe(e.to);
        }
      }
    }
    keys += edges.size();
  }
  EXPECT_GT(keys, 500u);
}

TEST(TensorKey, Copy_SaysWhatItIsOfAndWhatFor) {
  const StatePart part{2, 1};
  for (const bool begins : {false, true}) {
    const auto use = begins ? TensorKey::CopyUse::kBegin : TensorKey::CopyUse::kSecond;
    const TensorKey key =
        TensorKey::OfCopy(kRun, kEpoch, /*step=*/5, part, /*producer=*/0, /*consumer=*/3, use);
    EXPECT_EQ(key.kind, TensorKind::kCopy);
    EXPECT_EQ(key.copied_part(), part);
    EXPECT_EQ(key.begins_attempt(), begins);
    EXPECT_EQ(key.step, 5);
  }
}

}  // namespace
}  // namespace weft::tensor_key_test
