#include "client/files/run_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/yaml_file.h"
#include "client/files/predicted_run.h"
#include "client/files/schedule_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/byte_size.h"
#include "run/measured_buffers.h"
#include "tests/test_folder.h"

namespace weft::run_file_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class RunFile : public ::testing::Test {
 protected:
  RunFile() { temporary_.Write("words.txt", "to be or not to be"); }

  std::string Path() const { return folder_ + "/small.yaml"; }

  // The message about a file of this text, without the file's path.
  std::string Refusal(const std::string& text) const {
    const auto spec = ParseRunFile(Path(), text);
    EXPECT_FALSE(spec.ok());
    const std::string message(spec.status().message());
    EXPECT_THAT(message, StartsWith(Path() + ":"));
    return message.substr(Path().size());
  }

  const TestFolder temporary_;
  const std::string folder_ = temporary_.path();
  const std::string good_ =
      "model: {gpt: {layers: 4, width: 32, heads: 2, context: 8}}\n"
      "data:\n"
      "  text:\n"
      "    path: words.txt\n"
      "train:\n"
      "  steps: 3\n"
      "  batch: 16\n"
      "  microbatches: 4\n"
      "  optimizer: {adamw: {lr: 3.0e-4}}\n"
      "stages: 2\n"
      "schedule: {1f1b: }\n";

  std::string Changed(const std::string& from, const std::string& to) const {
    std::string text = good_;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    return text.replace(at, from.size(), to);
  }
};

TEST_F(RunFile, BuffersOfAnotherModel_AreRefusedByItsWeights) {
  const auto profile = [&](int weight_bytes) {
    nlohmann::json layer = {{"forward", 1}, {"weight_bytes", weight_bytes}};
    for (const LayerBuffersField& field : kLayerBuffersFields) layer[field.in_profile] = 0;
    std::ofstream(folder_ + "/profile.json")
        << nlohmann::json{{"samples", 4}, {"layers", std::vector<nlohmann::json>(6, layer)}};
  };
  const std::string text = good_ + "buffers: profile.json\n";
  profile(4);
  EXPECT_THAT(Refusal(text),
              HasSubstr("buffers: " + folder_ +
                        "/profile.json is of another model: its layer 0 has 4 bytes of weights"));
  profile(0);  // made by hand: it does not say whose layers they are
  EXPECT_TRUE(ParseRunFile(Path(), text).ok());
}

TEST_F(RunFile, PathThatIsNotUtf8_IsRefusedWithTheEscapedPath) {
  const auto spec = ParseRunFile(folder_ + "/sub\xff/small.yaml", good_, RunFileData::kIgnored);
  EXPECT_THAT(std::string(spec.status().message()),
              HasSubstr("/sub\\xff/small.yaml\" is not UTF-8, so the records of a run cannot hold it"));
  // Letters beside ASCII are none of that.
  EXPECT_TRUE(ParseRunFile(folder_ + "/\u00e9t\u00e9.yaml", good_, RunFileData::kIgnored).ok());
}

TEST_F(RunFile, Good_ResolvesPathsAndTakesTheFilesName) {
  std::ofstream(Path()) << good_;
  const auto spec = ReadRunFile(Path());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "small");
  EXPECT_EQ(std::get<TextData>(spec->data.source).path, folder_ + "/words.txt");
  EXPECT_DOUBLE_EQ(std::get<AdamWSpec>(spec->train.optimizer).lr, 3e-4);
  EXPECT_EQ(spec->schedule.name, "1f1b");
}

TEST_F(RunFile, Buffers_AreReadFromTheProfile) {
  nlohmann::json layer = {{"forward", 1}};
  const auto profile = [&] {
    return nlohmann::json{{"samples", 4}, {"layers", std::vector(6, layer)}}.dump();
  };
  std::ofstream(folder_ + "/old.json") << profile();
  EXPECT_THAT(Refusal(good_ + "buffers: none.json\n"),
              HasSubstr("No such file or directory; a relative path starts at the folder of the run file"));
  EXPECT_EQ(Refusal(good_ + "buffers: .\n"), ":12: buffers: cannot read " + folder_ + "/.: Is a directory");
  EXPECT_THAT(Refusal(good_ + "buffers: old.json\n"),
              StartsWith(":12: buffers: " + folder_ +
                         "/old.json does not say what jobs take while they run: "
                         "layers[0] has no `forward_buffer_bytes`"));
  for (const LayerBuffersField& field : kLayerBuffersFields) layer[field.in_profile] = 640;
  std::ofstream(folder_ + "/profile.json") << profile();
  const auto spec = ParseRunFile(Path(), good_ + "buffers: profile.json\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(spec->buffers.has_value());
  EXPECT_EQ(spec->buffers->samples, 4);
  ASSERT_EQ(spec->buffers->layers.size(), 6u);
  EXPECT_EQ(spec->buffers->layers[5].between, 640);
}

TEST_F(RunFile, BuffersOfAProfileThatLacksAKey_AreRefusedWithTheKey) {
  nlohmann::json layer = {{"forward", 1}};
  for (const LayerBuffersField& field : kLayerBuffersFields) layer[field.in_profile] = 639.5;
  nlohmann::json profile = {{"layers", std::vector(6, layer)}};
  const auto refusal = [&] {
    std::ofstream(folder_ + "/profile.json") << profile.dump();
    return Refusal(good_ + "buffers: profile.json\n");
  };
  EXPECT_THAT(refusal(), testing::HasSubstr("while they run: it has no `samples`; measure it"));
  profile["samples"] = 4;
  std::ofstream(folder_ + "/profile.json") << profile.dump();
  const auto spec = ParseRunFile(Path(), good_ + "buffers: profile.json\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->buffers->layers[0].forward, 640) << "a fraction of a byte is one";
  profile["layers"][3].erase("update_buffer_bytes");
  EXPECT_THAT(refusal(), testing::HasSubstr("layers[3] has no `update_buffer_bytes`"));
}

TEST_F(RunFile, WrongValue_MessageHasFileLineAndPath) {
  EXPECT_THAT(Refusal(Changed("batch: 16", "batch: 15")), StartsWith(":7: train.batch: the batch of 15"));
  EXPECT_THAT(Refusal(Changed("stages: 2", "stagse: 2")), StartsWith(":10: stagse: unknown key"));
  EXPECT_THAT(Refusal(Changed("lr: 3.0e-4", "lr: fast")),
              StartsWith(":9: train.optimizer.adamw.lr: must be"));
  EXPECT_THAT(Refusal(Changed("stages: 2", "stages:\n  - 3\n  - 0\n  - 3")), StartsWith(":12: stages[1]: "));
}

// The run file's own key may stand in the line, with another text.
TEST_F(RunFile, FaultOfAPlan_NamesThePlan) {
  const auto refusal = [&](const std::string& text, const std::string& plan) {
    std::ofstream(Path()) << text;
    const auto keys = ParsePlan("some/plan.yaml", plan);
    EXPECT_TRUE(keys.ok()) << keys.status();
    const auto run = ReadRunFile(Path(), RunFileData::kReadable, &*keys);
    EXPECT_FALSE(run.ok());
    const std::string message(run.status().message());
    EXPECT_THAT(message, StartsWith(Path() + ":"));
    return message.substr(Path().size());
  };
  EXPECT_THAT(refusal(good_, "schedule: {ddp: {ranks: x}}\nstages: [6]\n"),
              StartsWith(": with the plan some/plan.yaml: schedule: ddp: ranks is"));
  EXPECT_THAT(refusal(good_, "schedule: 1f1b\nstages: [2, 5]\n"),
              StartsWith(": with the plan some/plan.yaml: stages: "));
  EXPECT_THAT(refusal(good_, "schedule: 1f1b\nstages: [2, 4]\nbuffers: {samples: 0}\n"),
              StartsWith(": with the plan some/plan.yaml: buffers"));
  EXPECT_THAT(refusal(good_, "schedule: 1f1b\nstages: [2, 4]\nplan: {weight_bytes: 4}\n"),
              StartsWith(": schedule: some/plan.yaml is for another model"));
  const std::string odd = Changed("batch: 16\n  microbatches: 4", "batch: 15\n  microbatches: 5");
  EXPECT_THAT(refusal(odd, "schedule: 1f1b\nstages: [2, 4]\nmicrobatches: 4\n"),
              StartsWith(":7: with the plan some/plan.yaml: train.batch: the batch of 15"));
  EXPECT_THAT(refusal(Changed("steps: 3", "steps: x"), "schedule: 1f1b\nstages: [2, 4]\n"),
              StartsWith(":6: train.steps: "))
      << "the plan has no part in it";
}

TEST_F(RunFile, FaultOfAPlanThatTheFileNames_HasTheLineOfItsSchedule) {
  std::ofstream(folder_ + "/plan.yaml") << "schedule: 1f1b\nstages: [2, 5]\n";
  const std::string named = Changed("stages: 2\nschedule: {1f1b: }", "schedule: {file: plan.yaml}");
  EXPECT_THAT(Refusal(named), StartsWith(":10: with the plan " + folder_ + "/plan.yaml: stages: "));
}

TEST_F(RunFile, MissingKey_LineOfTheSectionItBelongsTo) {
  EXPECT_THAT(Refusal(Changed("  steps: 3\n", "")), StartsWith(":5: train.steps: is missing"));
  EXPECT_THAT(Refusal(Changed("stages: 2\n", "")), StartsWith(":1: stages: is missing"));
}

TEST_F(RunFile, ScheduleThatDoesNotFit_LineOfTheSchedule) {
  EXPECT_THAT(Refusal(Changed("{1f1b: }", "{lpp: {groups: 0, ranks: 2}}")), StartsWith(":11: schedule: lpp"));
  EXPECT_THAT(Refusal(Changed("{1f1b: }", "{lpp: {groups: 2}}")),
              StartsWith(":11: schedule: lpp needs `ranks`"));
  EXPECT_THAT(Refusal(Changed("{1f1b: }", "{lpp: {groups: 64, ranks: 1}}")), HasSubstr("4 micro-batches"));
}

TEST_F(RunFile, NetworkWithoutARankOfTheSchedule_IsRefusedWithItsLine) {
  EXPECT_THAT(Refusal(good_ + "network: {speeds: [1]}\n"),
              StartsWith(":12: network: speeds: there are 1; the schedule has 2 ranks"));
  EXPECT_THAT(Refusal(good_ + "network:\n  nodes: [1]\n"),
              StartsWith(":12: network: nodes: the nodes have 1 ranks together; the schedule has 2"));
  EXPECT_THAT(Refusal(good_ + "network:\n  nodes: [2]\n  speeds: [1, -1]\n"),
              StartsWith(":14: network.speeds[1]: "));
  const auto more = ParseRunFile(Path(), good_ + "network: {speeds: [1, 1, 0.5]}\n");
  EXPECT_TRUE(more.ok()) << more.status();
}

TEST_F(RunFile, ScheduleAlone_SaysThatItIsNoRun) {
  EXPECT_THAT(Refusal("custom: {ranks: 2, compute: s % W}\n"),
              AllOf(HasSubstr("holds the schedule custom and no run"), HasSubstr("below `schedule:`")));
}

TEST_F(RunFile, MemoryThatIsTooLittle_NamesWhatWouldDo) {
  const std::string refusal = Refusal(good_ + "memory: 1KiB\n");
  EXPECT_THAT(refusal, StartsWith(":12: memory: "));
  const size_t at = refusal.rfind("; memory: ");
  ASSERT_NE(at, std::string::npos) << refusal;
  const std::string enough = refusal.substr(at + 2, refusal.rfind(" would do") - at - 2);
  const auto run = ParseRunFile(Path(), good_ + enough + "\n");
  EXPECT_TRUE(run.ok()) << run.status();
}

TEST(ByteFlag, AnySize_IsRoundedUpByASixteenthAtMost) {
  for (double bytes = 16 * 1024; bytes < 1e12; bytes *= 1.37) {
    const double rounded = *ParseByteSize(ByteFlag(bytes));
    EXPECT_GE(rounded, bytes);
    EXPECT_LE(rounded, bytes * (1 + 1.0 / 16)) << ByteFlag(bytes);
  }
}

TEST_F(RunFile, DuplicateKey_NamesBothLines) {
  EXPECT_THAT(Refusal(good_ + "stages: 3\n"), StartsWith(":12: stages: is given twice, first on line 10"));
}

TEST_F(RunFile, NotYaml_NamesTheLine) {
  EXPECT_THAT(Refusal("model: {gpt: {layers: 4}\ndata: x\n"), HasSubstr("is not YAML"));
  EXPECT_EQ(Refusal("a: 1\n\tb: 2\n"), ":2: is not YAML: the line begins with a tab; indent with spaces");
  EXPECT_EQ(Refusal("a:\n\tb: 2\nc: 3\n"), ":2: is not YAML: the line begins with a tab; indent with spaces");
  EXPECT_THAT(Refusal(std::string("\x00\x01\xff\xfe", 4)), StartsWith(":"));
}

TEST_F(RunFile, NumberBeyondRange_NamedAsItStands) {
  EXPECT_EQ(Refusal(Changed("lr: 3.0e-4", "lr: 1e400")),
            ":9: train.optimizer.adamw.lr: 1e400 is too large for a number");
}

TEST_F(RunFile, WhichStepsToMake_IsForFlags) {
  // No message may name them as keys.
  EXPECT_THAT(Refusal("[1, 2]"), Not(HasSubstr("resume")));
  EXPECT_THAT(Refusal(Changed("stages: 2", "stagse: 2")), Not(HasSubstr("until")));
  EXPECT_THAT(Refusal(good_ + "until: 2\n"), HasSubstr("it is a flag, weft train FILE --until"));
  EXPECT_THAT(Refusal(good_ + "resume: {checkpoint: out, step: 1}\n"),
              HasSubstr("it is a flag, weft train FILE --resume"));
}

TEST_F(RunFile, EmptyOrNoSection_SaysSo) {
  EXPECT_EQ(Refusal(""), ": is empty");
  EXPECT_EQ(Refusal("# nothing but a remark\n"), ": is empty");
  EXPECT_THAT(Refusal("just words\n"), HasSubstr("must be a section with the keys name, model"));
  EXPECT_THAT(Refusal(good_ + "---\n" + good_), HasSubstr("second document"));
  EXPECT_THAT(Refusal("? [a, b]\n: 1\n"), HasSubstr("a key that is not text"));
}

// Found by the fuzzer of run files: the parser of YAML saw documents without end in it.
TEST_F(RunFile, TextThatBeginsWithAComma_IsRefusedAndDoesNotHang) {
  EXPECT_THAT(Refusal(", model: {gpt}"), HasSubstr(":1: is not YAML: nothing can begin like this"));
}

TEST_F(RunFile, HugeOrRecursive_RefusedQuickly) {
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    laughs += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) laughs += (j > 0 ? ", *a" : "*a") + std::to_string(i - 1);
    laughs += "]\n";
  }
  EXPECT_THAT(Refusal(laughs), HasSubstr("too many values"));
  EXPECT_THAT(Refusal("a: &a [*a]\n"), HasSubstr("nested too deeply"));
  std::ofstream(Path()) << std::string((1 << 20) + 1, ' ');
  EXPECT_THAT(std::string(ReadRunFile(Path()).status().message()), HasSubstr("larger than 1 MiB"));
}

TEST_F(RunFile, FileOrDataAbsent_NamesIt) {
  EXPECT_THAT(std::string(ReadRunFile(folder_ + "/none.yaml").status().message()),
              HasSubstr("none.yaml: cannot read the run file: No such file"));
  EXPECT_THAT(std::string(ReadRunFile(folder_).status().message()), HasSubstr("is a folder"));
  EXPECT_THAT(Refusal(Changed("words.txt", "/nonexistent")),
              StartsWith(":4: data.text.path: cannot read /nonexistent: No such file"));
  EXPECT_THAT(Refusal(Changed("words.txt", "/nonexistent")), Not(HasSubstr("relative")));
  EXPECT_THAT(Refusal(Changed("words.txt", "moved.txt")),
              HasSubstr("No such file or directory; a relative path starts at the folder of the run file"));
  EXPECT_THAT(Refusal(Changed("words.txt", ".")), HasSubstr("is a folder, not a file"));
}

TEST(YamlScalars, PlainAndQuoted_TypesOfTheCoreSchema) {
  const auto file = ParseYaml(
      "{a: 3, b: -3, c: 3.0e-4, d: true, e: ~, f: \"3\", g: 1f1b, h: .5, i: nan, j: 0x, k: "
      "18446744073709551615, "
      "l: 'true', m: , n: infinity, o: 1e3}");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->json,
            nlohmann::json::parse(R"({"a": 3, "b": -3, "c": 0.0003, "d": true, "e": null, "f": "3",
      "g": "1f1b", "h": 0.5, "i": "nan", "j": "0x", "k": 18446744073709551615, "l": "true", "m": null,
      "n": "infinity", "o": 1000.0})"));
  EXPECT_TRUE(file->json["a"].is_number_integer());
  EXPECT_TRUE(file->json["o"].is_number_float());
}

TEST_F(RunFile, WrongFormula_LineOfTheFormula) {
  const std::string custom = "schedule:\n  custom:\n    workers: 2\n    compute: s % W\n    weights: s % V\n";
  EXPECT_THAT(Refusal(Changed("schedule: {1f1b: }\n", custom)),
              StartsWith(":15: schedule: custom: weights: column 5: there is no \"V\""));
  EXPECT_THAT(
      Refusal(Changed("schedule: {1f1b: }\n", "schedule:\n  custom: {workers: 2, compute: s + 1}\n")),
      StartsWith(":12: schedule: custom: compute: is 2 for forward (step 0, stage 1, micro-batch 0)"));
}

TEST_F(RunFile, OldWeights_AreTakenWhereTheSizesAllowThem) {
  const auto custom =
      ParseRunFile(Path(), Changed("{1f1b: }", "{custom: {workers: 2, compute: s, staleness: 1}}"));
  EXPECT_TRUE(custom.ok()) << custom.status();
  EXPECT_THAT(Refusal(Changed("{1f1b: }", "{1f1b: , rule: cdp_v2}")),
              StartsWith(":11: schedule: 1f1b with rule=cdp_v2: in the cyclic order"));
}

TEST_F(RunFile, FileOfActions_IsReadBesideTheRunFile) {
  std::ofstream(folder_ + "/rows.csv")
      << "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n";
  const auto spec = ParseRunFile(Path(), Changed("{1f1b: }", "{file: rows.csv}"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->schedule.name, "file");
  EXPECT_THAT(spec->schedule.parameters.at("actions"), StartsWith("0F0,0F1,"));
  std::ofstream(folder_ + "/rows.csv") << "0F0,0B0\n1F0,1B0\n";
  EXPECT_THAT(
      Refusal(Changed("{1f1b: }", "{file: rows.csv}")),
      StartsWith(":11: schedule: rows.csv has the actions of 2 stages and 1 micro-batches, not of 2 and 4"));
  std::ofstream(folder_ + "/rows.csv") << "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3\n";
  EXPECT_THAT(Refusal(Changed("{1f1b: }", "{file: rows.csv}")), HasSubstr("micro-batch 3"));
  EXPECT_THAT(Refusal(Changed("{1f1b: }", "{file: none.csv}")),
              StartsWith(":11: schedule.file: cannot read"));
}

}  // namespace
}  // namespace weft::run_file_test
