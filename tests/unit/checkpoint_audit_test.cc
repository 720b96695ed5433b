// Tests what is found in checkpoints that are whole, incomplete or damaged, and that no flipped byte of one
// is ever believed.
#include "worker/shell/checkpoint/checkpoint_audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "tests/test_folder.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/checkpoint/checkpoint_reader.h"
#include "worker/shell/compute/training_state.h"

namespace weft::checkpoint_audit_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string BytesOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void PutBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class Audit : public ::testing::Test {
 protected:
  Audit() {
    MlpSpec model;
    model.layers = 3;
    model.inputs = 5;
    model.width = 7;
    model.classes = 2;
    run_.name = "r";
    run_.model = model;
    run_.layers_of_stage = {1, 2};
    run_.train.steps = 100;
    run_.train.optimizer = AdamWSpec();
    run_.schedule = *ParseScheduleText("pipedream");  // with an older version on stage 0
  }

  StateRule RuleOf(int stage) const { return StateRulesOf(*ScheduledRun::Make(run_)).at(stage); }

  // Saves the checkpoint of the step as a run does: other numbers in each buffer, some updates skipped.
  std::string Save(int step, uint64_t attempt = 1) const {
    const CheckpointFolders folders(out_, *ScheduledRun::Make(run_), "0123456789abcdef", attempt);
    for (int stage = 0; stage < run_.stages(); ++stage) {
      const StageLayout layout = LayOutStage(run_, stage);
      std::vector<std::vector<float>> flats(1 + StateBuffers(RuleOf(stage), step).size());
      std::vector<SlotPointers> slots;
      for (size_t i = 0; i < flats.size(); ++i) {
        for (int64_t e = 0; e < layout.elements; ++e)
          flats[i].push_back(static_cast<float>(1000 * i + 100 * stage + e + step) + 0.25f);
        slots.push_back(SlotsOf(layout, flats[i].data()));
      }
      const SlotPointers newest = slots.front();
      slots.erase(slots.begin());
      EXPECT_TRUE(
          WriteTrainingState(folders.Partial(step), layout, RuleOf(stage), step, step - 2, newest, slots)
              .ok());
    }
    const absl::Status sealed = folders.Seal(step, 10);
    EXPECT_TRUE(sealed.ok()) << sealed;
    return folders.Final(step);
  }

  // Returns all that a run would take from the checkpoint, or the refusal.
  absl::StatusOr<std::vector<std::vector<float>>> Load(const std::string& folder) {
    run_.resume.checkpoint = folder;
    const absl::StatusOr<int> step = ResumeStep(folder);
    if (!step.ok()) return step.status();
    run_.resume.step = *step;
    const absl::StatusOr<Checkpoint> weights = ReadCheckpoint(folder, run_.model);  // as weft eval does
    if (!weights.ok()) return weights.status();
    std::vector<std::vector<float>> all;
    for (int stage = 0; stage < run_.stages(); ++stage) {
      const StateRule rule = RuleOf(stage);
      const absl::StatusOr<SavedStage> saved = SavedStage::Read(run_, rule, stage);
      if (!saved.ok()) return saved.status();
      all.push_back({static_cast<float>(*step), static_cast<float>(saved->optimizer_steps())});
      const int64_t elements = LayOutStage(run_, stage).elements;
      all.emplace_back(elements);
      saved->CopyNewest({0, elements}, all.back().data());
      for (const std::string& buffer : StateBuffers(rule, *step)) {
        all.emplace_back(elements);
        saved->CopyBuffer(buffer, {0, elements}, all.back().data());
      }
    }
    for (const auto& [name, values] : weights->parameters) all.push_back(values);
    return all;
  }

  static std::vector<std::string> FilesOf(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), folder).string());
    }
    return files;
  }
  static CheckpointAudit AuditOf(const std::string& folder, AuditDepth depth = AuditDepth::kData) {
    return AuditCheckpoint(*ReadCheckpointName(folder), depth);
  }
  static void Flip(const std::string& path, size_t at, int mask = 0xff) {
    std::string bytes = BytesOf(path);
    bytes.at(at) = static_cast<char>(bytes[at] ^ mask);
    PutBytes(path, bytes);
  }

  const TestFolder temporary_;
  const std::string out_ = temporary_.path();
  RunSpec run_;
};

TEST_F(Audit, EveryFlippedByte_IsRefusedByTheFilesNameOrChangesNothing) {
  const std::string folder = Save(40);
  const auto whole = Load(folder);
  ASSERT_TRUE(whole.ok()) << whole.status();
  int refused = 0, unchanged = 0;
  for (const std::string& file : FilesOf(folder)) {
    const std::string path = absl::StrCat(folder, "/", file), good = BytesOf(path);
    for (size_t at = 0; at < good.size(); ++at) {
      // All bits, and each bit in turn: a digit becomes another, a letter changes its case.
      for (const int mask : {0xff, 1 << (at % 8)}) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ mask);
        PutBytes(path, bad);
        const auto loaded = Load(folder);
        const CheckpointAudit audit = AuditOf(folder);
        if (loaded.ok()) {
          ++unchanged;
          ASSERT_EQ(*loaded, *whole) << file << ", byte " << at << " ^ " << mask;
          continue;
        }
        ++refused;
        ASSERT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss)
            << loaded.status() << "; " << file << ", byte " << at << " ^ " << mask;
        ASSERT_THAT(std::string(loaded.status().message()), HasSubstr(file))
            << "byte " << at << " ^ " << mask;
        ASSERT_FALSE(audit.damages.empty()) << file << ", byte " << at << " ^ " << mask;
        ASSERT_THAT(audit.damages.front().file, file);
        ASSERT_THAT(audit.damages.front().message, HasSubstr(path));
      }
    }
    PutBytes(path, good);
  }
  EXPECT_GT(refused, 8000);
  // Spaces between words of the index become other spaces.
  EXPECT_LT(unchanged, refused / 20);
  EXPECT_TRUE(Load(folder).ok());
}

// Files that an older version has written say less, and are still read.
TEST_F(Audit, IndexWithoutChecksumsOfItsOwnAndOfHeaders_IsRead) {
  const std::string folder = Save(40), path = absl::StrCat(folder, "/", std::string(kCheckpointIndex));
  const auto whole = Load(folder);
  Json index = Json::parse(BytesOf(path));
  index["metadata"].erase("crc32");
  for (auto& [name, file] : index["metadata"]["files"].items()) file.erase("header_crc32");
  PutBytes(path, index.dump());
  const auto loaded = Load(folder);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, *whole);
  EXPECT_TRUE(AuditOf(folder).resumable());
}

TEST_F(Audit, SpacingOfTheIndex_IsNoDamage) {
  const std::string folder = Save(40), path = absl::StrCat(folder, "/", std::string(kCheckpointIndex));
  PutBytes(path, Json::parse(BytesOf(path)).dump());
  EXPECT_TRUE(AuditOf(folder).resumable());
}

TEST_F(Audit, WholeCheckpoint_IsResumableAndSaysWhatItIs) {
  const CheckpointAudit audit = AuditOf(Save(40));
  EXPECT_TRUE(audit.resumable());
  EXPECT_EQ(audit.step(), 40);
  EXPECT_EQ(audit.index->files.size(), 4u);
  uint64_t bytes = fs::file_size(absl::StrCat(audit.folder(), "/", std::string(kCheckpointIndex)));
  for (const auto& [name, file] : audit.index->files) bytes += file.bytes;
  EXPECT_EQ(audit.bytes, bytes);
}

TEST_F(Audit, HeadersAlone_FindALostFileAndAShortOneButNoFlippedData) {
  const std::string flipped = Save(10), lost = Save(20), cut = Save(30);
  Flip(absl::StrCat(flipped, "/", StageFileName(0)), fs::file_size(flipped + "/" + StageFileName(0)) - 1);
  fs::remove(absl::StrCat(lost, "/", StateFileName(1)));
  fs::resize_file(absl::StrCat(cut, "/", StageFileName(1)), 200);
  EXPECT_TRUE(AuditOf(flipped, AuditDepth::kHeaders).complete());
  EXPECT_THAT(AuditOf(flipped).damages.at(0).message, HasSubstr("the checksum differs"));
  for (const AuditDepth depth : {AuditDepth::kHeaders, AuditDepth::kData}) {
    const auto of_lost = AuditOf(lost, depth), of_cut = AuditOf(cut, depth);
    ASSERT_EQ(of_lost.damages.size(), 1u);
    EXPECT_THAT(of_lost.damages[0].message, AllOf(HasSubstr("state/stage01"), HasSubstr("is missing")));
    EXPECT_EQ(of_lost.damages[0].file, "state/stage01.safetensors");
    ASSERT_EQ(of_cut.damages.size(), 1u);
    EXPECT_THAT(of_cut.damages[0].message, HasSubstr("stage01.safetensors is damaged"));
  }
}

TEST_F(Audit, EachDamagedFile_IsNamed) {
  const std::string folder = Save(40);
  for (const std::string& file : {StageFileName(1), StateFileName(0)})
    Flip(absl::StrCat(folder, "/", file), 8 + 20);
  const CheckpointAudit audit = AuditOf(folder);
  std::vector<std::string> files;
  for (const CheckpointDamage& damage : audit.damages) files.push_back(damage.file);
  EXPECT_THAT(files, ElementsAre(StageFileName(1), StateFileName(0)));
}

// If an index without a checksum leaves out an entry, the audit finds that from the entries that belong
// together.
TEST_F(Audit, IndexThatLeavesSomethingOut_IsFound) {
  const std::string folder = Save(40), path = absl::StrCat(folder, "/", std::string(kCheckpointIndex));
  Json index = Json::parse(BytesOf(path));
  index["metadata"].erase("crc32");
  const auto damage_of = [&](const Json& changed) {
    PutBytes(path, changed.dump());
    const CheckpointAudit audit = AuditOf(folder, AuditDepth::kHeaders);
    return audit.damages.empty() ? std::string("none") : audit.damages.front().message;
  };
  EXPECT_EQ(damage_of(index), "none");
  Json without = index;
  without["weight_map"].erase("stage00.linear0.bias");
  EXPECT_THAT(damage_of(without), HasSubstr("holds stage00.linear0.bias, which the index does not name"));
  without = index;
  without["weight_map"]["stage00.linear9.bias"] = "stage00.safetensors";
  EXPECT_THAT(damage_of(without), HasSubstr("does not hold stage00.linear9.bias"));
  without = index;
  without["metadata"]["files"].erase("state/stage00.safetensors");
  without["metadata"]["state"] = {"state/stage01.safetensors"};
  EXPECT_THAT(damage_of(without), HasSubstr("does not name state/stage00.safetensors"));
}

// Buffers that the rule and the optimizer call for.
TEST_F(Audit, StateWithoutABuffer_IsFound) {
  const std::string folder = Save(40);
  const StageLayout layout = LayOutStage(run_, 1);
  const std::vector<float> values(static_cast<size_t>(layout.elements), 1);
  StateRule plain = RuleOf(1);
  plain.optimizer = SgdSpec();  // no buffers
  ASSERT_TRUE(WriteTrainingState(folder, layout, plain, 40, 40, SlotsOf(layout, values.data()), {}).ok());
  std::string state = BytesOf(absl::StrCat(folder, "/", StateFileName(1)));
  const size_t at = state.find("\"sgd\"");
  ASSERT_NE(at, std::string::npos);
  state.replace(at, 5, "\"adamw\"");
  state.erase(state.find_last_not_of(' ') + 1);
  const uint64_t length = state.size() - 8;
  PutBytes(absl::StrCat(folder, "/", StateFileName(1)),
           std::string(reinterpret_cast<const char*>(&length), 8) + state.substr(8));
  ASSERT_TRUE(WriteCheckpointIndex(folder, run_).ok());
  const CheckpointAudit audit = AuditOf(folder, AuditDepth::kHeaders);
  ASSERT_FALSE(audit.damages.empty());
  EXPECT_THAT(audit.damages[0].message, HasSubstr("does not hold stage01.linear1.weight.exp_avg"));
}

TEST_F(Audit, OutputFolder_ListsPartialOnesFirstThenInTheOrderOfSealing) {
  Save(40);
  usleep(2000);
  Save(20);  // later, though of an earlier step
  fs::create_directories(out_ + "/checkpoint-60.abc-2.partial");
  fs::create_directories(out_ + "/checkpoint-30.abc-2.validation.partial");
  fs::create_directories(out_ + "/checkpoint-x");
  std::vector<std::string> names;
  for (const CheckpointAudit& audit : AuditCheckpoints(out_, AuditDepth::kHeaders))
    names.push_back(fs::path(audit.folder()).filename().string());
  EXPECT_THAT(names, ElementsAre("checkpoint-60.abc-2.partial", "checkpoint-40", "checkpoint-20"));
  const auto one = AuditCheckpoints(out_ + "/checkpoint-40/", AuditDepth::kHeaders);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].step(), 40);
  EXPECT_THAT(AuditCheckpoints(out_ + "/checkpoint-x", AuditDepth::kHeaders), IsEmpty());
  EXPECT_THAT(AuditCheckpoints(out_ + "/nothing", AuditDepth::kHeaders), IsEmpty());
}

TEST_F(Audit, NewestValid_LeavesOutDamagedOnesAndNamesThem) {
  EXPECT_EQ(FindNewestValid(out_).folder, "");
  const std::string oldest = Save(20), middle = Save(40), newest = Save(60);
  EXPECT_EQ(FindNewestValid(out_).folder, newest);
  EXPECT_THAT(FindNewestValid(out_).refused, IsEmpty());
  const std::string data = absl::StrCat(newest, "/", StageFileName(0));
  Flip(data, fs::file_size(data) - 1);
  NewestValid found = FindNewestValid(out_);
  EXPECT_EQ(found.folder, middle);
  ASSERT_EQ(found.refused.size(), 1u);
  EXPECT_EQ(found.refused[0].folder(), newest);
  // Without its index nobody knows when it was sealed; its name says that it may be newer.
  fs::remove(absl::StrCat(middle, "/", std::string(kCheckpointIndex)));
  found = FindNewestValid(out_);
  EXPECT_EQ(found.folder, oldest);
  ASSERT_EQ(found.refused.size(), 2u);
  EXPECT_EQ(found.refused[0].folder(), middle);
  fs::remove(absl::StrCat(oldest, "/", StageFileName(1)));
  found = FindNewestValid(out_);
  EXPECT_EQ(found.folder, "");
  EXPECT_EQ(found.refused.size(), 3u);
}

TEST_F(Audit, NewestValid_IsNotKeptFromBeingFoundByAnOlderDamagedOne) {
  const std::string oldest = Save(20), newest = Save(40);
  fs::remove(absl::StrCat(oldest, "/", std::string(kCheckpointIndex)));
  const NewestValid found = FindNewestValid(out_);
  EXPECT_EQ(found.folder, newest);
  EXPECT_THAT(found.refused, IsEmpty());
}

}  // namespace
}  // namespace weft::checkpoint_audit_test
