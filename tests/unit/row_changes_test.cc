#include "coordinator/store/row_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/store.h"
#include "tests/conformance/stored_records.h"

namespace weft::row_changes_test {
namespace {

// Rows as a store keeps them, in the order of their keys.
class Rows {
 public:
  bool HasRun(uint64_t run) const {
    const auto row = rows_.lower_bound({run, 0, 0});
    return row != rows_.end() && std::get<0>(row->first) == run;
  }
  void Change(const RowChange& change) {
    const uint64_t run = change.row.run;
    switch (change.kind) {
      case RowChange::Kind::kPut:
        rows_[{run, static_cast<int>(change.row.kind), change.row.step}] = change.body;
        return;
      case RowChange::Kind::kRemoveProgress:
        rows_.erase(rows_.lower_bound({run, 3, 0}), rows_.lower_bound({run, 5, 0}));
        return;
      case RowChange::Kind::kRemoveRun:
        rows_.erase(rows_.lower_bound({run, 0, 0}), rows_.lower_bound({run + 1, 0, 0}));
        return;
    }
  }
  StoredState State(uint64_t epoch, uint64_t last_run) const {
    StoredState state;
    state.epoch = epoch;
    state.last_run = last_run;
    for (const auto& [key, body] : rows_) {
      const auto& [run, kind, step] = key;
      EXPECT_TRUE(AddRow({run, static_cast<RowKind>(kind), step}, body, kUnix, &state).ok());
    }
    return state;
  }

 private:
  std::map<std::tuple<uint64_t, int, int32_t>, std::string> rows_;
};

// Makes batches as a coordinator does: steps without gaps, none in the batch of its run's submission,
// checkpoints of stored steps, ends, oblivion.
class RandomCoordinator {
 public:
  explicit RandomCoordinator(uint32_t seed) : random_(seed) {}

  std::vector<Records> Batch() {
    std::vector<Records> batch(1 + random_() % 6);
    submitted_ = 0;
    for (Records& records : batch) Decide(&records);
    return batch;
  }

 private:
  void Decide(Records* records) {
    const uint64_t run = 1 + random_() % 4 + first_;
    if (random_() % 5 == 0) records->epoch = ++epoch_;
    if (steps_.count(run) == 0 && submitted_ == 0) {
      *records = Submitted(run);
      steps_[run] = 0;
      submitted_ = run;
    } else if (run == submitted_ || steps_.count(run) == 0) {
      return;
    } else if (ended_[run]) {
      (random_() % 2 == 0 || !written_[run] ? records->written : records->forgotten) = {run};
      if (!records->forgotten.empty()) first_ = std::max(first_, run);
      written_[run] = true;
    } else if (random_() % 8 == 0) {
      *records = Ended(run);
      ended_[run] = true;
    } else {
      *records = Stepped(run, steps_[run]++);
      if (random_() % 3 == 0) records->figures = {FiguresOf(run, RunState::kRunning, steps_[run])};
    }
  }

  std::mt19937 random_;
  uint64_t epoch_ = 0, first_ = 0, submitted_ = 0;
  std::map<uint64_t, int32_t> steps_;
  std::map<uint64_t, bool> ended_, written_;
};

TEST(RowChanges, RandomBatches_MakeWhatRecordsMean) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    RandomCoordinator coordinator(seed);
    Rows rows;
    StoredState expected;
    for (int i = 0; i < 20; ++i) {
      const std::vector<Records> batch = coordinator.Batch();
      for (const Records& records : batch) Apply(records, &expected);
      const RowChanges changes = ChangesOf(batch, kUnix, [&rows](uint64_t run) { return rows.HasRun(run); });
      for (const RowChange& change : changes.rows) rows.Change(change);
      ASSERT_EQ(TextOf(rows.State(expected.epoch, expected.last_run)), TextOf(expected)) << "seed " << seed;
    }
  }
}

// A crash between two parts of a batch leaves the first one.
TEST(RowChanges, AnyPartOfABatch_KeepsTheInvariants) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    RandomCoordinator coordinator(seed);
    Rows rows;
    uint64_t last_run = 0;
    for (int i = 0; i < 20; ++i) {
      const RowChanges changes =
          ChangesOf(coordinator.Batch(), kUnix, [&rows](uint64_t run) { return rows.HasRun(run); });
      last_run = std::max(last_run, changes.last_run);
      for (const RowChange& change : changes.rows) {
        rows.Change(change);
        if (change.joined) continue;
        const absl::Status whole = CheckStored(rows.State(1, last_run));
        ASSERT_TRUE(whole.ok()) << "seed " << seed << ": " << whole;
      }
    }
  }
}

TEST(RowChanges, OneBatch_TouchesNoRowTwice) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    RandomCoordinator coordinator(seed);
    Rows rows;
    for (int i = 0; i < 20; ++i) {
      const RowChanges changes =
          ChangesOf(coordinator.Batch(), kUnix, [&rows](uint64_t run) { return rows.HasRun(run); });
      Rows touched;
      for (const RowChange& change : changes.rows) {
        if (change.kind == RowChange::Kind::kRemoveRun) {
          ASSERT_FALSE(touched.HasRun(change.row.run)) << "seed " << seed;
        }
        touched.Change(change);
        rows.Change(change);
      }
    }
  }
}

}  // namespace
}  // namespace weft::row_changes_test
