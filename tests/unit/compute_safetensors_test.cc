#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/test_folder.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/checkpoint/safetensors.h"
#include "worker/shell/compute/compute.h"

namespace weft::compute_safetensors_test {
namespace {

class Safetensors : public ::testing::Test {
 protected:
  void Write(const std::string& header, const std::string& data, int64_t length_error = 0) {
    const uint64_t length = header.size() + length_error;
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
    std::ofstream(path_, std::ios::binary) << bytes << header << data;
  }
  std::string Content() {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void ExpectRefused(const std::string& why) {
    const absl::Status status = ReadSafetensors(path_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << why;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path_));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(why));
  }

  const TestFolder temporary_;
  const std::string folder_ = temporary_.path(), path_ = folder_ + "/a.safetensors";
};

TEST_F(Safetensors, WrittenTensors_AreReadBack) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> b = {-7, 8};
  const float scalar = 9;
  ASSERT_TRUE(WriteSafetensors(path_,
                               {{"zeta", DataType::kFloat32, {2, 3}, a.data()},
                                {"alpha", DataType::kInt64, {2}, b.data()},
                                {"empty", DataType::kFloat32, {0, 4}, a.data()},
                                {"scalar", DataType::kFloat32, {}, &scalar}},
                               {{"version", "12"}})
                  .ok());
  const absl::StatusOr<SafetensorsFile> file = ReadSafetensors(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header.entries.size(), 4u);
  EXPECT_EQ(file->header.metadata.at("version"), "12");
  EXPECT_EQ(file->header.data_begin % 8, 0u);
  const SafetensorsEntry* zeta = file->header.Find("zeta");
  ASSERT_NE(zeta, nullptr);
  EXPECT_EQ(zeta->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(file->data.data() + zeta->begin, a.data(), 24), 0);
  const SafetensorsEntry* alpha = file->header.Find("alpha");
  ASSERT_NE(alpha, nullptr);
  EXPECT_EQ(alpha->type, DataType::kInt64);
  EXPECT_EQ(std::memcmp(file->data.data() + alpha->begin, b.data(), 16), 0);
  EXPECT_EQ(file->header.Find("scalar")->shape, std::vector<int64_t>{});
  EXPECT_EQ(file->header.Find("other"), nullptr);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".partial"));
}

TEST_F(Safetensors, FormatOfOthers_IsRead) {
  Write(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
        R"("a":{"data_offsets":[0,4],"shape":[2,2],"dtype":"U8"}}   )",
        std::string("\1\2\3\4\0\0\x80\x3f", 8));
  const absl::StatusOr<SafetensorsFile> file = ReadSafetensors(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header.entries[0].name, "a");
  EXPECT_EQ(file->header.entries[1].begin, 4u);
}

TEST_F(Safetensors, DamagedFiles_AreRefusedWithTheCause) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string data(8, 'x');
  Write("{" + a + "}", data);
  ASSERT_TRUE(ReadSafetensors(path_).ok());

  std::ofstream(path_, std::ios::binary) << "abc";
  ExpectRefused("no header");
  Write("{" + a + "}", data, 1000);
  ExpectRefused("claims");
  Write("{" + a + "}", "", INT64_MAX);
  ExpectRefused("claims");
  Write("[]", data);
  ExpectRefused("not a JSON object");
  Write("{\"a\":", data);
  ExpectRefused("not a JSON object");
  Write("{" + a + "," + a + "}", data);
  ExpectRefused("twice");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  Write("{\"a\":" + deep + "}", data);
  ExpectRefused("its header is nested 33 levels deep");
  Write("{" + a + "}", data + "y");
  ExpectRefused("its data 9");
  Write("{" + a + "}", "xxxx");
  ExpectRefused("its data 4");
  Write(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data);
  ExpectRefused("gap or an overlap");
  Write("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data);
  ExpectRefused("gap or an overlap");
  Write(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", data);
  ExpectRefused("another size");
  Write(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", data);
  ExpectRefused("impossible shape");
  Write(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", data);
  ExpectRefused("no valid shape");
  Write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", data);
  ExpectRefused("ends before it begins");
  Write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", data);
  ExpectRefused("data_offsets");
  Write(R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", data);
  ExpectRefused("unknown dtype");
  Write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})", data);
  ExpectRefused("just dtype");
  Write(R"({"__metadata__":{"x":1},)" + a + "}", data);
  ExpectRefused("metadata");
  std::filesystem::remove(path_);
  EXPECT_EQ(ReadSafetensors(path_).status().code(), absl::StatusCode::kNotFound);
}

// They may be the only copy.
TEST_F(Safetensors, WeightsOfOthersThatAreNone_AreNotToBeDeleted) {
  std::ofstream(path_, std::ios::binary) << "PK\x03\x04 and what torch.save writes behind it";
  const absl::Status status = ReadWeightsHeader(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr(path_ + " is no whole safetensors file: its header"));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(::testing::HasSubstr("delete")));
  Write("{}", "");
  EXPECT_TRUE(ReadWeightsHeader(path_).ok());
}

TEST_F(Safetensors, RandomDamageOfTheHeader_NeverCrashes) {
  const std::vector<float> values(100, 1.5f);
  ASSERT_TRUE(WriteSafetensors(path_,
                               {{"one", DataType::kFloat32, {10, 5}, values.data()},
                                {"two", DataType::kFloat32, {50}, values.data()}},
                               {})
                  .ok());
  const std::string good = Content();
  const size_t header_end = good.find('}', good.find("two")) + 2;
  std::mt19937 random(5);
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (uint32_t n = 1 + random() % 3; n > 0; --n) bad[random() % header_end] = static_cast<char>(random());
    if (random() % 4 == 0) bad.resize(random() % bad.size());
    std::ofstream(path_, std::ios::binary) << bad;
    const absl::StatusOr<SafetensorsFile> file = ReadSafetensors(path_);
    if (!file.ok()) continue;
    for (const SafetensorsEntry& e : file->header.entries) ASSERT_LE(e.end, file->data.size());
  }
}

TEST_F(Safetensors, UnwritableFolder_LeavesTheOldFile) {
  const float value = 1;
  const std::string missing = folder_ + "/missing/a.safetensors";
  const absl::Status status = WriteSafetensors(missing, {{"a", DataType::kFloat32, {1}, &value}}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(missing));
  EXPECT_EQ(WriteSafetensors(
                path_, {{"a", DataType::kFloat32, {1}, &value}, {"a", DataType::kFloat32, {1}, &value}}, {})
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

class Checkpoint : public Safetensors {
 protected:
  Checkpoint() {
    MlpSpec model;
    model.layers = 2;
    model.inputs = 3;
    model.width = 4;
    model.classes = 2;
    run_.name = "r";
    run_.model = model;
    run_.layers_of_stage = {1, 1};
  }
  absl::Status SaveStage(int stage, int version) {
    const std::vector<float> values(100, static_cast<float>(stage));
    return WriteStageFile(folder_, LayOutStage(run_, stage), {values.data(), values.data()}, version);
  }
  std::string index() const { return folder_ + "/model.safetensors.index.json"; }
  RunSpec run_;
};

TEST_F(Checkpoint, AllStages_IndexNamesEachParameter) {
  ASSERT_TRUE(SaveStage(0, 3).ok());
  ASSERT_TRUE(SaveStage(1, 3).ok());
  ASSERT_TRUE(WriteCheckpointIndex(folder_, run_).ok());
  std::ifstream in(index());
  const nlohmann::json json = nlohmann::json::parse(in);
  EXPECT_EQ(json["metadata"]["total_size"], (12 + 4 + 8 + 2) * 4);
  EXPECT_EQ(json["weight_map"]["stage00.linear0.weight"], "stage00.safetensors");
  EXPECT_EQ(json["weight_map"]["stage01.linear1.bias"], "stage01.safetensors");
  EXPECT_EQ(json["weight_map"].size(), 4u);
}

TEST_F(Checkpoint, SlicesInAnyOrder_TheLastMakesTheStagesFile) {
  const StageLayout layout = LayOutStage(run_, 0);
  std::vector<float> flat(static_cast<size_t>(layout.elements));
  std::iota(flat.begin(), flat.end(), 1.0f);
  // More holders than cache lines: one of them holds nothing.
  ASSERT_EQ(layout.elements, 32);
  constexpr int kParts = 3;
  const auto save = [&](int part, int version) {
    const float* slice = flat.data() + SliceOf(layout.elements, part, kParts).begin;
    absl::Status s = WriteSliceFile(folder_, layout, {}, version, version, part, kParts, slice, {});
    return s.ok() ? JoinSliceFiles(folder_, layout, {}, version, kParts) : s;
  };
  const std::string joined = folder_ + "/" + StageFileName(0);
  ASSERT_TRUE(save(2, 7).ok());
  ASSERT_TRUE(save(0, 7).ok());
  EXPECT_FALSE(std::filesystem::exists(joined));
  // The slice is of another version: the folder has two writers.
  EXPECT_EQ(save(1, 8).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(joined));
  ASSERT_TRUE(save(1, 7).ok());
  const auto file = ReadSafetensors(joined);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header.metadata.at("version"), "7");
  for (const ParameterSlot& slot : layout.slots) {
    const SafetensorsEntry* entry = file->header.Find(CheckpointName(0, slot));
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(std::memcmp(file->data.data() + entry->begin, flat.data() + slot.offset,
                          static_cast<size_t>(slot.parameter.elements()) * sizeof(float)),
              0);
  }
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 2) << "the weights, the state, and no slices";
}

TEST_F(Checkpoint, DiscardedSlice_IsNotJoined) {
  const StageLayout layout = LayOutStage(run_, 0);
  std::vector<float> flat(static_cast<size_t>(layout.elements));
  const auto write = [&](int part) {
    return WriteSliceFile(folder_, layout, {}, 1, 1, part, 2,
                          flat.data() + SliceOf(layout.elements, part, 2).begin, {});
  };
  ASSERT_TRUE(write(0).ok());
  ASSERT_TRUE(DiscardSlice(folder_, 0, 0, 2).ok());
  ASSERT_TRUE(DiscardSlice(folder_, 0, 0, 2).ok()) << "there is nothing to discard";
  ASSERT_TRUE(write(1).ok());
  ASSERT_TRUE(JoinSliceFiles(folder_, layout, {}, 1, 2).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/" + StageFileName(0)));
}

TEST_F(Checkpoint, MissingOrOtherStage_LeavesNoIndex) {
  ASSERT_TRUE(SaveStage(0, 3).ok());
  EXPECT_EQ(WriteCheckpointIndex(folder_, run_).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(SaveStage(1, 4).ok());
  EXPECT_EQ(WriteCheckpointIndex(folder_, run_).code(), absl::StatusCode::kFailedPrecondition);
  std::get<MlpSpec>(run_.model).width = 5;
  EXPECT_EQ(WriteCheckpointIndex(folder_, run_).code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(std::filesystem::exists(index()));
}

}  // namespace
}  // namespace weft::compute_safetensors_test
