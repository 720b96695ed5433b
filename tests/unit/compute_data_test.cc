#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/test_folder.h"
#include "worker/shell/data/data.h"

namespace weft::compute_data_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DataTest : public ::testing::Test {
 protected:
  DataTest() {
    run_.train.batch = 4;
    run_.train.microbatches = 2;
  }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string WriteGz(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    return path;
  }
  void ExpectRefused(absl::StatusCode code, const std::vector<std::string>& parts) {
    const absl::Status status = Dataset::Open(run_).status();
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& part : parts) EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  const TestFolder temporary_;
  const std::string folder_ = temporary_.path();
  RunSpec run_;
};

class TextTest : public DataTest {
 protected:
  TextTest() {
    GptSpec model;
    model.context = 3;
    run_.model = model;
  }
  void Use(const std::string& content) { run_.data.source = TextData{Write("t.txt", content)}; }
};

TEST_F(TextTest, Samples_OverlapByOneByte) {
  Use("abcdefgh");  // 3 does not divide 8 - 1: the last byte is of no sample
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->count(), 2);
  EXPECT_EQ((*data)->inputs(), 3);
  std::vector<int64_t> x(3), y(3);
  ASSERT_TRUE((*data)->ReadInputs(1, x.data()).ok());
  ASSERT_TRUE((*data)->ReadTargets(1, y.data()).ok());
  EXPECT_THAT(x, ElementsAre('d', 'e', 'f'));
  EXPECT_THAT(y, ElementsAre('e', 'f', 'g'));
}

TEST_F(TextTest, BytesBeyondAscii_AreNotNegative) {
  Use("\xff\xfe\xfd\xfc");
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok());
  std::vector<int64_t> x(3);
  ASSERT_TRUE((*data)->ReadInputs(0, x.data()).ok());
  EXPECT_THAT(x, ElementsAre(255, 254, 253));
}

TEST_F(TextTest, Microbatches_FollowTheOrderOfTheContract) {
  Use("0123456789abcdefghijklmnop");  // 26 bytes, 8 samples
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok());
  ASSERT_EQ((*data)->count(), 8);
  // n = 2, B = 2: step 1, micro-batch 1 begins with sample (1*2 + 1)*2 = 6.
  std::vector<int64_t> x(6);
  ASSERT_TRUE((*data)->ReadInputs(run_, 1, 1, x.data()).ok());
  EXPECT_THAT(x, ElementsAre('i', 'j', 'k', 'l', 'm', 'n'));
  ASSERT_TRUE((*data)->ReadTargets(run_, 2, 0, x.data()).ok());  // number 8, again from the beginning
  EXPECT_THAT(x, ElementsAre('1', '2', '3', '4', '5', '6'));
  EXPECT_EQ(SampleOf(run_, 1000000000, 1, 1, 1000000007), (Sample{4000000003 % 1000000007, 3}));
}

TEST_F(TextTest, UnusableFiles_AreRefusedByName) {
  run_.data.source = TextData{folder_ + "/none.txt"};
  ExpectRefused(absl::StatusCode::kNotFound, {"data.text.path", "none.txt"});
  Use("");
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"t.txt", "empty"});
  Use("abc");
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"t.txt", "3 bytes", "4", "context"});
  run_.data.source = TextData{folder_};
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"not a regular file"});
  // Nobody writes into it: to wait for that would be to wait for ever.
  ASSERT_EQ(mkfifo((folder_ + "/pipe.txt").c_str(), 0600), 0);
  run_.data.source = TextData{folder_ + "/pipe.txt"};
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"pipe.txt", "not a regular file"});
  Use("abcz");
  std::get<GptSpec>(run_.model).vocabulary = 'z';
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"byte 3", "122", "vocabulary"});
  std::get<GptSpec>(run_.model).vocabulary = 'z' + 1;
  EXPECT_TRUE(Dataset::Open(run_).ok());
  run_.model = MlpSpec{};
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"mlp", "idx"});
}

TEST_F(TextTest, NumbersOf16Bits_AreTokensAndCheckedAgainstTheVocabulary) {
  const std::string content("\x01\x00\x02\x01\xff\xff\x04\x00\x05\x00\x06\x00\x07\x00", 14);
  run_.data.source = TextData{Write("t.bin", content), TextData::Tokens::kUInt16};
  std::get<GptSpec>(run_.model).vocabulary = 65536;
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->count(), 2);
  std::vector<int64_t> x(3), y(3);
  ASSERT_TRUE((*data)->ReadInputs(0, x.data()).ok());
  ASSERT_TRUE((*data)->ReadTargets(1, y.data()).ok());
  EXPECT_THAT(x, ElementsAre(1, 258, 65535));
  EXPECT_THAT(y, ElementsAre(5, 6, 7));
  std::get<GptSpec>(run_.model).vocabulary = 50257;
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"token 2", "65535", "vocabulary is 50257"});
  run_.data.source = TextData{Write("t.bin", content.substr(1)), TextData::Tokens::kUInt16};
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"13 bytes", "not a whole number of tokens"});
  run_.data.source = TextData{Write("t.bin", content.substr(0, 6)), TextData::Tokens::kUInt16};
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"6 bytes", "context + 1 = 4 tokens of 2 bytes"});
}

// An exported model whose fields are rows of three tokens, the first of which an embedding of 300 rows reads.
ExportedSpec TokenModel() {
  auto model = std::make_shared<ExportedModel>();
  model->fields = {{"ids", ElementType::kI64, {3}, 0, 24}, {"labels", ElementType::kI64, {3}, 24, 24}};
  model->sample_bytes = 48;
  ExportedLayer layer;
  layer.fields = {0};
  layer.parameters = {{"words", ElementType::kF32, {300, 4}}};
  GraphOperation embed;
  embed.name = "aten::embedding";
  embed.arguments = {GraphValue{1}, GraphValue{0}};
  layer.operations = {embed};
  layer.values = 2;
  model->layers = {layer};
  ExportedSpec spec;
  spec.model = model;
  return spec;
}

std::vector<int64_t> SampleOf(const Dataset& data, int64_t number) {
  std::vector<int64_t> fields(6);
  EXPECT_TRUE(data.ReadInputs(number, fields.data()).ok());
  return fields;
}

TEST_F(TextTest, TokensOfAnExportedModel_FillItsFields) {
  const std::string content("\x01\x00\x02\x01\x03\x00\x04\x00\x05\x00\x06\x00\x07\x00", 14);
  TextData text{Write("t.bin", content), TextData::Tokens::kUInt16, {"ids"}, {"labels"}};
  run_.model = TokenModel();
  run_.data.source = text;
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->count(), 2);
  EXPECT_THAT(SampleOf(**data, 0), ElementsAre(1, 258, 3, 258, 3, 4));
  EXPECT_THAT(SampleOf(**data, 1), ElementsAre(4, 5, 6, 5, 6, 7));

  text.inputs = {"ids", "labels"};  // a model that shifts its labels itself
  text.targets = {};
  text.path = Write("t.bin", content.substr(0, 12));
  run_.data.source = text;
  data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->count(), 2) << "no token behind the last one is needed";
  EXPECT_THAT(SampleOf(**data, 1), ElementsAre(4, 5, 6, 4, 5, 6));

  text.path = Write("t.bin", std::string("\x01\x00\x2c\x01\x03\x00", 6));  // 300 in the middle
  run_.data.source = text;
  ExpectRefused(absl::StatusCode::kInvalidArgument,
                {"token 1", "is 300", "rows of the model's embedding is 300"});
  text.path = Write("t.bin", content.substr(0, 4));
  run_.data.source = text;
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"4 bytes", "a sample needs 3 tokens of 2 bytes"});
}

// Returns the numbers as bytes, the low one first.
template <typename T>
std::string BytesOf(std::initializer_list<T> numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.begin()), numbers.size() * sizeof(T));
}

TEST_F(TextTest, NumbersOf32Bits_AreTokens) {
  run_.data.source =
      TextData{Write("t.bin", BytesOf<uint32_t>({1, 70000, 3, 128255})), TextData::Tokens::kUInt32};
  std::get<GptSpec>(run_.model).vocabulary = 128256;
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<int64_t> y(3);
  ASSERT_TRUE((*data)->ReadTargets(0, y.data()).ok());
  EXPECT_THAT(y, ElementsAre(70000, 3, 128255));
  EXPECT_TRUE((*data)->CheckWhole([](int64_t, int64_t) {}).ok());
  std::get<GptSpec>(run_.model).vocabulary = 128255;
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"token 3", "is 128255", "vocabulary is 128255"});
}

TEST_F(TextTest, FilesOfLlmC_HaveTheirTokensBehindAHeader) {
  std::get<GptSpec>(run_.model).vocabulary = 70001;
  const auto use = [&](uint32_t magic, uint32_t version, uint32_t count, const std::string& tokens) {
    const std::string header = BytesOf<uint32_t>({magic, version, count}) + std::string(253 * 4, '\0');
    run_.data.source = TextData{Write("t.bin", header + tokens), TextData::Tokens::kLlmC};
  };
  const auto expect = [&](std::vector<int64_t> inputs) {
    const auto data = Dataset::Open(run_);
    ASSERT_TRUE(data.ok()) << data.status();
    std::vector<int64_t> x(3);
    ASSERT_TRUE((*data)->ReadInputs(0, x.data()).ok());
    EXPECT_EQ(x, inputs);
  };
  use(20240520, 1, 4, BytesOf<uint16_t>({5, 60000, 7, 8}));
  expect({5, 60000, 7});
  use(20240801, 7, 4, BytesOf<uint32_t>({5, 70000, 7, 8}));
  expect({5, 70000, 7});
  use(20240801, 1, 4, BytesOf<uint32_t>({5, 70000, 7, 8}));
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"t.bin", "llm.c", "begins with 20240801 and version 1"});
  use(20240520, 1, 5, BytesOf<uint16_t>({5, 6, 7, 8}));
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"says 5 tokens of 2 bytes", "8 bytes behind"});
  run_.data.source = TextData{Write("t.bin", "short"), TextData::Tokens::kLlmC};
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"shorter than the header"});
}

TEST_F(TextTest, FilesOfMegatron_HaveAnIndexBeside) {
  std::get<GptSpec>(run_.model).vocabulary = 70001;
  const auto index = [&](uint8_t type, std::initializer_list<uint32_t> lengths) {
    const auto sequences = static_cast<uint64_t>(lengths.size());
    return std::string("MMIDIDX\0\0", 9) + BytesOf<uint64_t>({1}) + static_cast<char>(type) +
           BytesOf<uint64_t>({sequences, 1}) + BytesOf(lengths) + std::string(8 * sequences + 8, '\0');
  };
  Write("m.idx", index(8, {3, 4}));
  const std::string bin = Write("m.bin", BytesOf<uint16_t>({1, 2, 3, 4, 5, 60000, 7}));
  for (const std::string& path : {bin, bin.substr(0, bin.size() - 4), folder_ + "/m.idx"}) {
    run_.data.source = TextData{path, TextData::Tokens::kMegatron};
    const auto data = Dataset::Open(run_);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ((*data)->count(), 2);
    std::vector<int64_t> y(3);
    ASSERT_TRUE((*data)->ReadTargets(1, y.data()).ok());
    EXPECT_THAT(y, ElementsAre(5, 60000, 7));
  }
  Write("m.idx", index(8, {3, 5}));
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"m.bin", "says 8 tokens of 2 bytes", "14 bytes"});
  Write("m.idx", index(7, {3, 4}));
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"m.idx", "type 7"});
  Write("m.idx", "MMIDIDX");
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"m.idx", "cut short"});
  Write("m.idx", index(8, {3, 4}).substr(1) + "x");
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"m.idx", "MMIDIDX"});
}

TEST_F(TextTest, FileCutShortUnderTheRun_IsDataLoss) {
  Use("abcdefgh");
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok());
  std::filesystem::resize_file(folder_ + "/t.txt", 4);
  std::vector<int64_t> x(3);
  EXPECT_EQ((*data)->ReadInputs(0, x.data()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*data)->ReadInputs(1, x.data()).code(), absl::StatusCode::kDataLoss);
}

TEST_F(TextTest, FileOverwrittenUnderTheRunWithAsManyBytes_IsDataLossThatNamesIt) {
  Use("abcdefgh");
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok());
  std::vector<int64_t> x(3);
  EXPECT_TRUE((*data)->ReadInputs(0, x.data()).ok());
  const auto written = std::filesystem::last_write_time(folder_ + "/t.txt");
  std::fstream(folder_ + "/t.txt", std::ios::in | std::ios::out) << "ijklmnop";
  // Clocks of file systems may be coarse.
  std::filesystem::last_write_time(folder_ + "/t.txt", written + std::chrono::seconds(1));
  const absl::Status status = (*data)->ReadInputs(0, x.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("t.txt was written to while the run read it"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Give new data a new name"));
}

TEST_F(TextTest, FileReplacedByAnotherOfItsName_TheRunReadsTheOneThatItOpened) {
  Use("abcdefgh");
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok());
  std::filesystem::rename(Write("new.txt", "ijklmnop"), folder_ + "/t.txt");
  std::vector<int64_t> x(3);
  ASSERT_TRUE((*data)->ReadInputs(0, x.data()).ok());
  EXPECT_THAT(x, ElementsAre('a', 'b', 'c'));
}

class IdxTest : public DataTest {
 protected:
  IdxTest() {
    MlpSpec model;
    model.inputs = 4;
    model.classes = 3;
    run_.model = model;
  }
  static std::string Images() {
    return std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02", 16) +
           std::string("\0\xff\x33\1\2\3\4\5", 8);
  }
  static std::string Labels() { return std::string("\0\0\x08\x01\0\0\0\x02\2\0", 10); }
  void Use(const std::string& images, const std::string& labels) {
    run_.data.source = IdxData{Write("images", images), Write("labels", labels)};
  }
};

TEST_F(IdxTest, PlainAndPackedFiles_GiveTheSameSamples) {
  for (bool packed : {false, true}) {
    if (packed) {
      run_.data.source = IdxData{WriteGz("i.gz", Images()), WriteGz("l.gz", Labels())};
    } else {
      Use(Images(), Labels());
    }
    auto data = Dataset::Open(run_);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ((*data)->count(), 2);
    EXPECT_EQ((*data)->targets(), 1);
    std::vector<float> x(4);
    ASSERT_TRUE((*data)->ReadInputs(0, x.data()).ok());
    EXPECT_THAT(x, ElementsAre(0.0f, 1.0f, 0.2f, 1.0f / 255));
    int64_t label = -1;
    ASSERT_TRUE((*data)->ReadTargets(0, &label).ok());
    EXPECT_EQ(label, 2);
  }
}

TEST_F(IdxTest, ImagesOfAnotherShapeThanTheModels_AreRefused) {
  Use(Images(), Labels());
  ResNetSpec model;
  model.channels = 1;
  model.size = 2;
  model.classes = 3;
  run_.model = model;
  EXPECT_TRUE(Dataset::Open(run_).ok());
  std::get<ResNetSpec>(run_.model).channels = 3;
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"images", "1 channel and 2 x 2", "channels: 3"});
  VitSpec vit;
  vit.channels = 1;
  vit.size = 4;
  run_.model = vit;
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"images", "2 x 2", "model.vit_b16", "size: 4"});
}

TEST_F(IdxTest, UnusableFiles_AreRefusedByName) {
  const auto bad = absl::StatusCode::kInvalidArgument;
  Use(Images(), Labels());
  run_.data.source = IdxData{folder_ + "/images", folder_ + "/none"};
  ExpectRefused(absl::StatusCode::kNotFound, {"data.idx.labels", "none"});
  Use(Images().substr(0, 10), Labels());
  ExpectRefused(bad, {"images", "cut short in its header"});
  Use(Images().substr(0, 23), Labels());
  ExpectRefused(bad, {"images", "23 bytes"});
  Use(Labels() + std::string(10, 'x'), Labels());
  ExpectRefused(bad, {"images", "not an IDX file", "00 00 08 01"});
  Use("PNG and some more bytes", Labels());
  ExpectRefused(bad, {"images", "not an IDX file"});
  Use(Images(), std::string("\0\0\x08\x01\0\0\0\x01\2", 9));
  ExpectRefused(bad, {"2 images", "1 labels"});
  Use(Images(), std::string("\0\0\x08\x01\0\0\0\x02\2\3", 10));
  ExpectRefused(bad, {"labels", "label 1", "is 3", "classes"});
  Use(std::string("\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16) + "abc", Labels());
  ExpectRefused(bad, {"images", "19 bytes"});
  Use(Images(), Labels());
  std::get<MlpSpec>(run_.model).inputs = 784;
  ExpectRefused(bad, {"2 x 2 = 4", "784", "model.mlp.inputs"});
}

TEST_F(IdxTest, ImagesWithChannels_OfTheModelsSizeOrResized) {
  // Two images of three channels of 2 x 2.
  std::string images("\0\0\x08\x04\0\0\0\x02\0\0\0\x03\0\0\0\x02\0\0\0\x02", 20);
  for (int i = 0; i < 24; ++i) images.push_back(static_cast<char>(i));
  Use(images, Labels());
  ResNetSpec model;
  model.size = 2;
  run_.model = model;
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<float> x(12);
  ASSERT_TRUE((*data)->ReadInputs(1, x.data()).ok());
  for (int i = 0; i < 12; ++i) EXPECT_EQ(x[i], static_cast<float>(12 + i) / 255);
  std::get<ResNetSpec>(run_.model).size = 4;
  ExpectRefused(absl::StatusCode::kInvalidArgument,
                {"3 channels and 2 x 2", "size: 4", "resize: true reads them in its size"});
  std::get<IdxData>(run_.data.source).resize = true;
  data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok()) << data.status();
  x.resize(48);
  ASSERT_TRUE((*data)->ReadInputs(0, x.data()).ok());
  for (int i = 0; i < 48; ++i) {
    const int channel = i / 16, row = i / 4 % 4, column = i % 4;
    const int quarter = row / 2 * 2 + column / 2;
    EXPECT_EQ(x[i], static_cast<float>(channel * 4 + quarter) / 255) << i;
  }
  run_.model = MlpSpec();
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"data.idx.resize", "any shape"});
  std::get<MlpSpec>(run_.model).inputs = 12;
  std::get<IdxData>(run_.data.source).resize = false;
  EXPECT_TRUE(Dataset::Open(run_).ok());
}

TEST_F(IdxTest, DamagedPackedFile_IsRefused) {
  Use(Images(), Labels());
  const std::string labels = folder_ + "/labels";
  const std::string packed = WriteGz("i.gz", Images());
  std::ifstream in(packed, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  for (size_t cut : {bytes.size() - 9, bytes.size() - 3, bytes.size() / 2}) {
    run_.data.source = IdxData{Write("cut.gz", bytes.substr(0, cut)), labels};
    ExpectRefused(absl::StatusCode::kInvalidArgument, {"cut.gz"});
  }
  std::string flipped = bytes;
  flipped[flipped.size() - 6] ^= 1;  // in the checksum
  run_.data.source = IdxData{Write("bad.gz", flipped), labels};
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"bad.gz", "damaged"});
}

class Cifar10Test : public DataTest {
 protected:
  Cifar10Test() { run_.model = ResNetSpec(); }
  // Records with these labels; pixel p of each is label + p modulo 256.
  static std::string Records(const std::vector<int>& labels) {
    std::string records;
    for (const int label : labels) {
      records.push_back(static_cast<char>(label));
      for (int p = 0; p < 3072; ++p) records.push_back(static_cast<char>((label + p) % 256));
    }
    return records;
  }
};

TEST_F(Cifar10Test, OneFile_GivesItsRecords) {
  run_.data.source = Cifar10Data{Write("test_batch.bin", Records({3, 9}))};
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->count(), 2);
  EXPECT_EQ((*data)->inputs(), 3072);
  std::vector<float> x(3072);
  ASSERT_TRUE((*data)->ReadInputs(1, x.data()).ok());
  EXPECT_EQ(x[0], 9.0f / 255);
  EXPECT_EQ(x[3071], static_cast<float>((9 + 3071) % 256) / 255);
  int64_t label = -1;
  ASSERT_TRUE((*data)->ReadTargets(1, &label).ok());
  EXPECT_EQ(label, 9);
}

TEST_F(Cifar10Test, Folder_IsItsFiveTrainingFilesInOrder) {
  for (int i = 1; i <= 5; ++i) {
    const int other = i == 5 ? 1 : 8 - i;
    Write("data_batch_" + std::to_string(i) + ".bin",
          Records(i == 2 ? std::vector<int>{i} : std::vector<int>{i, other}));
  }
  run_.data.source = Cifar10Data{folder_};
  auto data = Dataset::Open(run_);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ((*data)->count(), 9);
  std::vector<int64_t> labels(9);
  std::vector<float> x(3072);
  for (int i = 0; i < 9; ++i) {
    ASSERT_TRUE((*data)->ReadTargets(i, &labels[i]).ok());
    ASSERT_TRUE((*data)->ReadInputs(i, x.data()).ok());
    EXPECT_EQ(x[0], static_cast<float>(labels[i]) / 255) << "the label's own pixels";
  }
  EXPECT_THAT(labels, ElementsAre(1, 7, 2, 3, 5, 4, 4, 5, 1));
  std::filesystem::remove(folder_ + "/data_batch_4.bin");
  ExpectRefused(absl::StatusCode::kNotFound, {"data.cifar10.path", "data_batch_4.bin"});
}

TEST_F(Cifar10Test, Resized_EveryPixelIsTheOneOverItsMiddle) {
  Cifar10Data source{Write("small.bin", Records({3})), /*resize=*/true};
  run_.data.source = source;
  for (const int size : {224, 33, 32, 8, 1}) {
    SCOPED_TRACE(size);
    std::get<ResNetSpec>(run_.model).size = size;
    auto data = Dataset::Open(run_);
    ASSERT_TRUE(data.ok()) << data.status();
    ASSERT_EQ((*data)->inputs(), 3 * size * size);
    std::vector<float> x(3 * size * size);
    ASSERT_TRUE((*data)->ReadInputs(0, x.data()).ok());
    for (int i = 0; i < static_cast<int>(x.size()); ++i) {
      const int channel = i / (size * size), row = i / size % size, column = i % size;
      const auto from = [&](int at) { return static_cast<int>((at + 0.5) * 32 / size); };
      const int pixel = channel * 1024 + from(row) * 32 + from(column);
      ASSERT_EQ(x[i], static_cast<float>((3 + pixel) % 256) / 255) << i;
    }
  }
  std::get<ResNetSpec>(run_.model).channels = 1;
  ExpectRefused(absl::StatusCode::kInvalidArgument, {"3 channels", "resnet18"});
}

TEST_F(Cifar10Test, UnusableFiles_AreRefusedByName) {
  const auto bad = absl::StatusCode::kInvalidArgument;
  run_.data.source = Cifar10Data{Write("cut.bin", Records({1, 2}).substr(0, 6000))};
  ExpectRefused(bad, {"data.cifar10.path", "cut.bin", "6000 bytes", "3073"});
  run_.data.source = Cifar10Data{Write("labels.bin", Records({1, 10}))};
  ExpectRefused(bad, {"labels.bin", "label 1", "is 10", "classes"});
  run_.data.source = Cifar10Data{Write("good.bin", Records({1}))};
  EXPECT_TRUE(Dataset::Open(run_).ok());
  std::get<ResNetSpec>(run_.model).size = 28;
  ExpectRefused(bad, {"data.cifar10", "32 x 32", "resnet18"});
  MlpSpec mlp;
  mlp.inputs = 3072;
  run_.model = mlp;
  EXPECT_TRUE(Dataset::Open(run_).ok());
}

}  // namespace
}  // namespace weft::compute_data_test
