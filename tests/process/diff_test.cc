// `weft train --record hashes` and `weft diff`: the real programs record the same hashes under every schedule
// and in the plain loop, and one that differs is named.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::diff_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr int kDiffer = 1, kBadConfiguration = 78;

class Diff : public ::testing::Test {
 protected:
  // Trains into a folder of that name, and returns it.
  std::string Train(const std::string& name, const std::map<std::string, std::string>& changes,
                    const std::vector<std::string>& flags = {"--record", "hashes"}) {
    std::vector<std::string> words = {"weft", "train", WriteSmallRun(folder_, changes), "--out",
                                      folder_ / name};
    words.insert(words.end(), flags.begin(), flags.end());
    const CommandResult trained = Command::Run(words, 120);
    EXPECT_EQ(trained.code, 0) << trained.err;
    return folder_ / name;
  }
  static CommandResult Compare(const std::string& a, const std::string& b,
                               const std::vector<std::string>& flags = {}) {
    std::vector<std::string> words = {"weft", "diff", a, b};
    words.insert(words.end(), flags.begin(), flags.end());
    return Command::Run(words);
  }
  // Flips a digit of a hash of the job whose line has all of these words.
  static void FlipHash(const std::string& run, const std::vector<std::string>& words) {
    const std::string path = run + "/hashes.jsonl";
    std::istringstream lines(ReadWholeFile(path));
    std::string changed;
    int flipped = 0;
    for (std::string line; std::getline(lines, line); changed += line + "\n") {
      bool meant = true;
      for (const std::string& word : words) meant = meant && line.find(word) != std::string::npos;
      if (!meant) continue;
      char& digit = line[line.find("\"]") - 1];
      digit = digit == '0' ? '1' : '0';
      ++flipped;
    }
    ASSERT_EQ(flipped, 1);
    std::ofstream(path, std::ios::trunc) << changed;
  }

  const TestFolder folder_;
};

TEST_F(Diff, RunsOfOneTraining_AreEqual_UntilOneHashIsNot) {
  const std::string first = Train("first", {});
  const std::string plain = Train("plain", {}, {"--record", "hashes", "--reference"});
  const std::string other =
      Train("other", {{"schedule", "{ddp: {}}"}, {"record", "hashes"}}, {"--processes", "2"});
  for (const std::string& run : {plain, other}) {
    const CommandResult equal = Compare(first, run);
    EXPECT_EQ(equal.code, 0) << equal.out << equal.err;
    EXPECT_THAT(equal.out, HasSubstr("of steps 0 to 2 have the same hashes in both runs"));
  }
  const Json same = Json::parse(Compare(plain, other, {"-o", "json"}).out);
  EXPECT_EQ(same["equal"], true);
  // 4 micro-batches and stages, 3 steps: at least activations, gradients, sums and weights of each.
  EXPECT_GE(same["values"], 3 * (2 * 16 + 2 * 4));

  FlipHash(first, {"\"step\":1,\"stage\":2,\"microbatch\":3,\"kind\":\"forward\""});
  const CommandResult differs = Compare(plain, first);
  EXPECT_EQ(differs.code, kDiffer) << differs.out << differs.err;
  EXPECT_THAT(differs.out, HasSubstr("forward (step 1, stage 2, micro-batch 3)"));
  EXPECT_THAT(differs.out, HasSubstr("Its activation differs"));
  EXPECT_THAT(differs.out, HasSubstr(plain + ": forward, the reference"));
  const Json json = Json::parse(Compare(plain, first, {"--output", "json"}).out);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["first"]["stage"], 2);
  EXPECT_EQ(json["first"]["b"]["rank"], 2);
}

TEST_F(Diff, ARunThatWentOn_IsComparedFromStartToEnd) {
  const std::string whole = Train("whole", {});
  const std::string parts = Train("parts", {}, {"--record", "hashes", "--until", "2"});
  const CommandResult rest = Command::Run({"weft", "train", folder_ / "run.yaml", "--out", parts, "--resume",
                                           parts, "--record", "hashes", "--reference"},
                                          120);
  ASSERT_EQ(rest.code, 0) << rest.err;
  const CommandResult equal = Compare(whole, parts);
  EXPECT_EQ(equal.code, 0) << equal.out << equal.err;
  EXPECT_THAT(equal.out, HasSubstr("of steps 0 to 2 "));
}

TEST_F(Diff, RunsWithoutHashes_AreComparedByLossesAndCheckpoints) {
  const std::string first = Train("first", {}, {});
  const std::string second = Train("second", {{"schedule", "{gpipe: {}}"}}, {});
  const CommandResult equal = Compare(first, second);
  EXPECT_EQ(equal.code, 0) << equal.out << equal.err;
  EXPECT_THAT(equal.out, HasSubstr("equal: the losses of 3 steps and 2 checkpoints"));
  EXPECT_THAT(equal.out, Not(HasSubstr("--record hashes"))) << "there is no job to look for";
  EXPECT_FALSE(std::filesystem::exists(first + "/hashes.jsonl"));
}

TEST_F(Diff, RunsThatCannotBeCompared_AreRefusedWithTheReason) {
  const std::string first = Train("first", {});
  const std::string other =
      Train("other",
            {{"train", "{steps: 3, batch: 16, microbatches: 4, seed: 2, optimizer: {adamw: {lr: 1.0e-3}}}"}});
  const CommandResult refused = Compare(first, other);
  EXPECT_EQ(refused.code, kBadConfiguration);
  EXPECT_THAT(refused.err, HasSubstr("are not runs of the same training"));
  const CommandResult missing = Compare(first, folder_ / "nowhere");
  EXPECT_EQ(missing.code, kBadConfiguration);
  EXPECT_THAT(missing.err, HasSubstr("is no folder"));
  const CommandResult wrong = Command::Run({"weft", "train", folder_ / "run.yaml", "--record", "all"});
  EXPECT_EQ(wrong.code, 2);
}

}  // namespace
}  // namespace weft::diff_test
