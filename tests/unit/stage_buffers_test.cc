#include "run/stage_buffers.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "run/stage_cut.h"
#include "tests/unit/small_run_spec.h"

namespace weft::stage_buffers_test {
namespace {

// The run's micro-batches have four samples, and its model six layers.
constexpr int kLayers = 6;

MeasuredBuffers Buffers(int samples = 4) {
  MeasuredBuffers buffers;
  buffers.samples = samples;
  for (int64_t l = 0; l < kLayers; ++l) {
    const int64_t first = 100'000 * (l + 1);
    buffers.layers.push_back({.forward = first,
                              .backward = first + 1,
                              .backward_beyond = first - 5,
                              .backward_input = first + 2,
                              .backward_weight = first + 3,
                              .between = first / 2,
                              .between_beyond = first / 4,
                              .update = l});
  }
  return buffers;
}

RunSpec RunCut(const Json& stages, const MeasuredBuffers& buffers = Buffers()) {
  Json text = With("/stages", stages);
  text["schedule"] = {{"1f1b", nullptr}};
  text["buffers"] = ToJson(buffers);
  const auto run = ParseRunSpec(text);
  EXPECT_TRUE(run.ok()) << run.status();
  return *run;
}

std::vector<StageBuffers> CountAll(const RunSpec& run) {
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  std::vector<StageBuffers> stages;
  for (const StageLinks& links : LinkStages(layers, run.layers_of_stage))
    stages.push_back(CountStageBuffers(run, layers, links));
  return stages;
}

TEST(StageBuffers, StageOfOneLayer_TakesWhatItTookAlone) {
  const std::vector<StageBuffers> stages = CountAll(RunCut({1, 1, 1, 1, 1, 1}));
  ASSERT_EQ(stages.size(), 6u);
  for (int64_t s = 1; s < kLayers; ++s) {
    const LayerBuffers layer = Buffers().layers[s];
    EXPECT_EQ(stages[s].forward, layer.forward) << s;
    EXPECT_EQ(stages[s].backward, layer.backward) << s;
    EXPECT_EQ(stages[s].backward_beyond, layer.backward_beyond) << s;
    EXPECT_EQ(stages[s].backward_input, layer.backward_input) << s;
    EXPECT_EQ(stages[s].backward_weight, layer.backward_weight) << s;
    EXPECT_EQ(stages[s].between, layer.between) << s;
    EXPECT_EQ(stages[s].between_beyond, layer.between_beyond) << s;
    EXPECT_EQ(stages[s].update, s) << s;
  }
}

// Nobody waits for a gradient of the data.
TEST(StageBuffers, StageThatReadsTheData_DoesItsBackwardInTheSecondHalf) {
  const StageBuffers first = CountAll(RunCut({2, 4})).front();
  EXPECT_EQ(first.backward_input, 0);
  EXPECT_EQ(first.between, 0);
  EXPECT_EQ(first.backward_weight, first.backward);
}

TEST(StageBuffers, StageOfSeveralLayers_HasTheGradientsOfThoseBehindBesideEach) {
  const RunSpec run = RunCut({3, 3});
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  const StageBuffers last = CountAll(run).back();
  const int64_t output = 4 * layers[3].output.elements(4);  // of each block
  EXPECT_EQ(last.forward, Buffers().layers[5].forward);
  int64_t behind = 0, most = 0;
  for (int l = 5; l >= 3; --l) {
    most = std::max(most, behind + (l < 5 ? output : 0) + Buffers().layers[l].backward);
    behind += layers[l].gradient_bytes;
  }
  EXPECT_EQ(last.backward, most);
  EXPECT_LE(last.backward_beyond, last.backward);
  EXPECT_EQ(last.between, 750'000 + 2 * output);
  EXPECT_EQ(last.between_beyond, 375'000 + 2 * output);
}

TEST(StageBuffers, LargerMicrobatches_TakeInProportion_SmallerOnesAsMuch) {
  const Json cut = {1, 1, 1, 1, 1, 1};
  EXPECT_EQ(CountAll(RunCut(cut, Buffers(2)))[2].forward, 2 * Buffers().layers[2].forward);
  const StageBuffers more = CountAll(RunCut(cut, Buffers(2)))[2],
                     fewer = CountAll(RunCut(cut, Buffers(8)))[2];
  const LayerBuffers measured = Buffers().layers[2];
  EXPECT_EQ(more.backward_beyond, 2 * measured.backward_beyond);
  EXPECT_EQ(more.between_beyond, 2 * measured.between_beyond);
  EXPECT_EQ(fewer.backward, measured.backward);
  EXPECT_EQ(fewer.backward_input, measured.backward_input);
  EXPECT_EQ(fewer.backward_weight, measured.backward_weight);
  EXPECT_EQ(fewer.between, measured.between);
}

// Eight samples took off what they kept, or freed; four keep less.
TEST(StageBuffers, SmallerMicrobatches_TakeBackActivationsThatTheyDoNotHave) {
  MeasuredBuffers buffers = Buffers(8);
  buffers.layers[2] = {.forward = 100, .backward = 50'000'000, .between = 40'000'000};
  const RunSpec run = RunCut({1, 1, 1, 1, 1, 1}, buffers);
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  const int64_t less = KeptTensorBytes(layers, 2, 3, 8) - KeptTensorBytes(layers, 2, 3, 4);
  ASSERT_GT(less, 0);
  const std::vector<StageBuffers> stages = CountAll(run);
  EXPECT_EQ(stages[2].forward, 100 + less);
  EXPECT_EQ(stages[2].backward_beyond, less);
  EXPECT_EQ(stages[2].between_beyond, less);
  EXPECT_EQ(stages[3].backward_beyond, stages[3].backward) << "no more than the buffers";
  EXPECT_EQ(stages[3].between_beyond, stages[3].between);
}

TEST(StageBuffers, Budget_CountsThemInPlaceOfFormulas) {
  const RunSpec run = RunCut({1, 1, 1, 1, 1, 1});
  const RunMemory counted = CountRun(run, *ScheduleOf(run));
  for (int rank = 1; rank < kLayers; ++rank)
    EXPECT_EQ(counted.ranks[rank].work, Buffers().layers[rank].forward) << rank;
  RunSpec standing = run;
  standing.buffers->standing = 77;
  EXPECT_EQ(CountRun(standing, *ScheduleOf(standing)).ranks[3].work, counted.ranks[3].work + 77);
}

TEST(StageBuffers, RankWithPairs_HasWorkMemoryForEachThreadAndLane) {
  RunSpec run = RunCut({1, 1, 1, 1, 1, 1});
  run.schedule = {.name = "dualpipe"};
  run.train.microbatches = 12;
  const RunSchedule schedule = *ScheduleOf(run);
  ASSERT_TRUE(Graph(schedule).has_pairs());
  const int64_t without = CountRun(run, schedule).ranks[3].work;
  run.buffers->standing = 77;
  EXPECT_EQ(CountRun(run, schedule).ranks[3].work, without + 4 * 77);
}

// Each tensor that goes to the host is there until its copy has ended. Where the backward is on another rank,
// none goes.
TEST(StageBuffers, ForwardUnderOffload_HasWhatGoesToTheHost) {
  RunSpec run = RunCut({1, 1, 1, 1, 1, 1});
  const StageBuffers buffers = CountAll(run)[3];
  run.schedule.activations = "offload";
  const StageMemory stage = CountStage(run, 3);
  const int64_t all = KeptTensorBytes(CountLayers(run.model, run.precision), 3, 4, 4);
  EXPECT_EQ(stage.forward_work, all + buffers.forward);
  EXPECT_EQ(stage.once_work, buffers.forward_once);
  run.schedule.activations = "recompute";
  EXPECT_EQ(CountStage(run, 3).forward_work, buffers.forward_once);
}

// A rank that computes neighbouring stages has the gradient between them, beside what its jobs take.
TEST(StageBuffers, GradientsForTheOwnRank_AreInItsForwards) {
  RunSpec run = RunCut({3, 3});
  EXPECT_EQ(CountRun(run, *ScheduleOf(run)).forwards.returned_bytes, (std::vector<int64_t>{0, 0}));
  run.schedule = {.name = "lpp", .parameters = {{"groups", "1"}, {"ranks", "1"}}};
  const StageMemory first = CountStage(run, 0);
  EXPECT_EQ(CountRun(run, *ScheduleOf(run)).forwards.returned_bytes, (std::vector<int64_t>{first.output, 0}));
}

// A first half frees activations of the rank's where they are there: retained or made again, not offloaded.
TEST(StageBuffers, FirstHalf_LeavesLessByTheActivationsThatItFrees) {
  RunSpec run = RunCut({1, 1, 1, 1, 1, 1});
  const LayerBuffers layer = Buffers().layers[2];
  const StageMemory retained = CountStage(run, 2);
  EXPECT_EQ(retained.between, layer.between_beyond);
  EXPECT_EQ(retained.between_buffers, layer.between);
  run.schedule.activations = "recompute";
  EXPECT_EQ(CountStage(run, 2).between, layer.between_beyond + retained.activation_bytes);
  EXPECT_EQ(CountStage(run, 2).between_buffers, layer.between_beyond + retained.activation_bytes);
  run.schedule.activations = "offload";
  EXPECT_EQ(CountStage(run, 2).between, layer.between);
  EXPECT_EQ(CountStage(run, 2).between_buffers, layer.between);
}

TEST(MeasuredBuffers, RunFile_KeepsThem) {
  const RunSpec run = RunCut({3, 3});
  const auto again = ParseRunSpec(ToJson(run));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ToJson(*again), ToJson(run));
}

TEST(MeasuredBuffers, OfAnotherModel_AreRefused) {
  MeasuredBuffers buffers = Buffers();
  buffers.layers.pop_back();
  ExpectRefused({With("/buffers", ToJson(buffers)), "buffers.layers", "the model's 6 layers"});
  Json negative = ToJson(Buffers());
  negative["layers"][2]["forward"] = -1;
  ExpectRefused({With("/buffers", negative), "buffers.layers[2].forward", "must be"});
  ExpectRefused({With("/buffers", Json::object()), "buffers.samples", ""});
  Json missing = ToJson(Buffers());
  missing["layers"][4].erase("between");
  ExpectRefused({With("/buffers", missing), "buffers.layers[4].between", "between: 4096"});
}

}  // namespace
}  // namespace weft::stage_buffers_test
