// Tests what a process keeps in memory of the state of a run, and that a stage can be read from it.
#include "worker/shell/loop/kept_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tests/unit/small_run_spec.h"
#include "worker/shell/checkpoint/packed_snapshot.h"
#include "worker/shell/checkpoint/snapshot_memory.h"

namespace weft::kept_copies_test {
namespace {

constexpr int kStep = 2, kStage = 1;

RunSpec Spec() {
  RunSpec spec = *ParseRunSpec(GptRun());
  spec.resume = {"", kStep, /*copies=*/true};
  return spec;
}

const StateRule& Rule() {
  static const auto* rule = new StateRule{{}, Spec().train.optimizer, ""};
  return *rule;
}

// A snapshot whose buffers have numbers of their own, of the whole or of a slice.
StageSnapshot Snapshot(int part, int parts) {
  StageSnapshot s;
  s.layout = LayOutStage(Spec(), kStage);
  s.rule = Rule();
  s.version = kStep;
  s.optimizer_steps = 5;
  s.part = part;
  s.parts = parts;
  const SliceBounds bounds = SliceOf(s.layout.elements, part, parts);
  for (int flat = 0; flat < 3; ++flat) {  // weights and AdamW's two
    const auto values = std::make_shared<std::vector<float>>();
    for (int64_t i = bounds.begin; i < bounds.end; ++i)
      values->push_back(static_cast<float>(1000 * flat + i % 997));
    Tensor tensor;
    tensor.data = values->data();
    tensor.bytes = values->size() * sizeof(float);
    tensor.owner = values;
    s.flats.push_back(tensor);
  }
  return s;
}

TEST(KeptCopies, PartsOfAStage_AreReadAsTheyWereSaved) {
  PlainMemory plain;
  SnapshotMemory memory(plain);
  KeptCopies kept(memory);
  kept.BeginRun(1);
  std::vector<Tensor> parts;
  for (const int part : {0, 1, 2}) {
    ASSERT_TRUE(kept.Put(1, 7, Snapshot(part, 3)).ok());
    parts.push_back(*kept.Find(1, {7, kStep, {kStage, part}}));
  }
  EXPECT_EQ(kept.bytes(), 0) << "the memory of snapshots counts its own";
  EXPECT_EQ(memory.bytes(), static_cast<int64_t>(parts[0].bytes + parts[1].bytes + parts[2].bytes));
  const auto stage = ReadPackedStage(Spec(), Rule(), kStage, parts);
  ASSERT_TRUE(stage.ok()) << stage.status();
  EXPECT_EQ((*stage)->optimizer_steps(), 5);
  const int64_t elements = LayOutStage(Spec(), kStage).elements;
  std::vector<float> values(static_cast<size_t>(elements));
  (*stage)->CopyNewest({0, elements}, values.data());
  for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(values[i], static_cast<float>(i % 997)) << i;
  std::vector<float> some(100);
  (*stage)->CopyBuffer("exp_avg_sq", {50, 150}, some.data());
  for (int i = 0; i < 100; ++i) ASSERT_EQ(some[i], static_cast<float>(2000 + (50 + i) % 997)) << i;
}

TEST(KeptCopies, BytesThatAreNoSnapshotOfTheStage_AreRefused) {
  PlainMemory plain;
  SnapshotMemory memory(plain);
  const Tensor good = *PackSnapshot(Snapshot(0, 1), memory);
  EXPECT_TRUE(ReadPackedStage(Spec(), Rule(), kStage, {good}).ok());
  const auto refused = [&](int stage, const std::vector<Tensor>& parts) {
    EXPECT_EQ(ReadPackedStage(Spec(), Rule(), stage, parts).status().code(), absl::StatusCode::kDataLoss);
  };
  refused(kStage + 1, {good});
  refused(kStage, {});
  Tensor cut = good;
  cut.bytes -= 4;
  refused(kStage, {cut});
  cut.bytes = 10;
  refused(kStage, {cut});
  for (size_t at = 0; at < kSnapshotHeadBytes; at += 8) {
    if (at == 24) continue;  // the optimizer's steps may be any
    const Tensor bad = *PackSnapshot(Snapshot(0, 1), memory);
    static_cast<char*>(bad.data)[at] ^= 0x55;
    refused(kStage, {bad});
  }
}

TEST(KeptCopies, Drop_KeepsOneAttemptFromAStepOn) {
  PlainMemory plain;
  SnapshotMemory memory(plain);
  KeptCopies kept(memory);
  kept.BeginRun(1);
  const auto put = [&](uint64_t epoch, int step) {
    kept.Put(1, {epoch, step, {kStage, 0}}, *PackSnapshot(Snapshot(0, 1), memory));
  };
  const auto has = [&](uint64_t epoch, int step) { return kept.Find(1, {epoch, step, {kStage, 0}}).ok(); };
  put(7, 9);
  put(8, 4);
  put(8, 5);
  const int64_t bytes = kept.bytes() / 3;
  put(8, 5);
  EXPECT_EQ(kept.bytes(), 3 * bytes) << "the first one stays";
  kept.Drop(2, 8, 5);
  EXPECT_TRUE(has(7, 9)) << "another run's";
  kept.Drop(1, 8, 5);
  EXPECT_FALSE(has(7, 9));
  EXPECT_FALSE(has(8, 4));
  EXPECT_TRUE(has(8, 5));
  EXPECT_EQ(kept.bytes(), bytes);
  EXPECT_EQ(kept.peak_bytes(), 3 * bytes);
  kept.BeginRun(1);
  EXPECT_TRUE(has(8, 5)) << "another attempt of the same run";
  kept.BeginRun(2);
  EXPECT_FALSE(has(8, 5));
  EXPECT_EQ(kept.bytes(), 0);
  put(8, 6);
  EXPECT_EQ(kept.bytes(), 0) << "of a run that is over here";
}

}  // namespace
}  // namespace weft::kept_copies_test
