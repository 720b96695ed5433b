// Tests the fields of samples that come from NumPy files.
#include "worker/shell/data/array_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft::array_data_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ArrayDataTest : public ::testing::Test {
 protected:
  ArrayDataTest() { std::filesystem::create_directories(folder_); }
  ~ArrayDataTest() override { std::filesystem::remove_all(folder_); }

  // Writes a file as numpy.save does; returns its path.
  std::string Write(const std::string& name, const std::string& type, const std::string& shape,
                    const std::string& bytes, const std::string& order = "False") {
    std::string header =
        absl::StrCat("{'descr': '", type, "', 'fortran_order': ", order, ", 'shape': ", shape, ", }");
    header.resize((header.size() + 10 + 64) / 64 * 64 - 10, ' ');
    std::string path = folder_ + "/" + name;
    const char length[] = {static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
    std::ofstream(path, std::ios::binary)
        << "\x93NUMPY" << '\1' << '\0' << std::string(length, 2) << header << bytes;
    return path;
  }
  template <typename T>
  static std::string Bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }

  // Fields x, float32 [2], and y, one int64.
  static ExportedModel Model() {
    ExportedModel model;
    model.fields = {{"x", ElementType::kF32, {2}, 0, 8}, {"y", ElementType::kI64, {}, 8, 8}};
    model.sample_bytes = 16;
    return model;
  }
  static ArraysData Files(const std::vector<std::string>& x, const std::vector<std::string>& y) {
    ArraysData data;
    data.paths = {{"x", x}, {"y", y}};
    return data;
  }
  std::string Refusal(const std::string& x, const std::string& y) {
    const auto data = OpenArrays(Files({x}, {y}), Model());
    return data.ok() ? "" : std::string(data.status().message());
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "/array_data_", getpid());
};

TEST_F(ArrayDataTest, Samples_AreTheirFieldsOneAfterTheOther) {
  const std::string x = Write("x.npy", "<f4", "(3, 2)", Bytes<float>({0, 1, 2, 3, 4, 5}));
  const std::string y = Write("y.npy", "<u2", "(3,)", Bytes<uint16_t>({7, 65535, 9}));
  const auto data = OpenArrays(Files({x}, {y}), Model());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->count(), 3);
  EXPECT_EQ((*data)->inputs(), 16);
  EXPECT_EQ((*data)->targets(), 0);
  char sample[16];
  ASSERT_TRUE((*data)->ReadInputs(1, sample).ok());
  std::vector<float> floats(2);
  int64_t label = 0;
  std::memcpy(floats.data(), sample, 8);
  std::memcpy(&label, sample + 8, 8);
  EXPECT_THAT(floats, ElementsAre(2, 3));
  EXPECT_EQ(label, 65535);
}

TEST_F(ArrayDataTest, NarrowerNumbers_AreWidenedExactly) {
  const struct {
    std::string type;
    std::string bytes;
    float first, last;
  } narrow[] = {{"|u1", Bytes<uint8_t>({3, 255}), 3, 255},
                {"|i1", Bytes<int8_t>({-128, 127}), -128, 127},
                {"|b1", Bytes<uint8_t>({0, 1}), 0, 1},
                {"<u2", Bytes<uint16_t>({1, 65535}), 1, 65535},
                {"<i2", Bytes<int16_t>({-32768, 32767}), -32768, 32767}};
  const std::string y = Write("y.npy", "|b1", "(1,)", "\1");
  for (const auto& [type, bytes, first, last] : narrow) {
    const auto data = OpenArrays(Files({Write("x.npy", type, "(1, 2)", bytes)}, {y}), Model());
    ASSERT_TRUE(data.ok()) << type << ": " << data.status();
    char sample[16];
    ASSERT_TRUE((*data)->ReadInputs(0, sample).ok());
    std::vector<float> floats(2);
    int64_t label = 0;
    std::memcpy(floats.data(), sample, 8);
    std::memcpy(&label, sample + 8, 8);
    EXPECT_THAT(floats, ElementsAre(first, last)) << type;
    EXPECT_EQ(label, 1);
  }
}

TEST_F(ArrayDataTest, HalfPrecision_IsWidenedExactly) {
  constexpr int kAll = 1 << 16;
  ExportedModel model;
  model.fields = {{"x", ElementType::kF32, {kAll}, 0, 4 * kAll}};
  model.sample_bytes = 4 * kAll;
  std::vector<uint16_t> halves(kAll);
  for (int i = 0; i < kAll; ++i) halves[i] = static_cast<uint16_t>(i);
  const std::string x = Write("x.npy", "<f2", absl::StrCat("(1, ", kAll, ")"), Bytes(halves));
  const auto data = OpenArrays(Files({x}, {}), model);
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<float> floats(kAll);
  ASSERT_TRUE((*data)->ReadInputs(0, floats.data()).ok());
  for (int i = 0; i < kAll; ++i) {
    const int exponent = i >> 10 & 0x1f, fraction = i & 0x3ff;
    EXPECT_EQ(std::signbit(floats[i]), i >= kAll / 2) << i;
    const float size = std::abs(floats[i]);
    if (exponent == 31) {
      EXPECT_TRUE(fraction == 0 ? std::isinf(size) : std::isnan(size)) << i;
    } else {
      EXPECT_EQ(size, exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25))
          << i;
    }
  }
}

// Rounding is that of array.astype("float32") and tensor.float(): to the nearest, to even where two are as
// near, and to infinity beyond the largest.
TEST_F(ArrayDataTest, DoublePrecision_IsRoundedToTheNearest) {
  const double half = 0x1p-24;  // half of the step behind 1
  const std::vector<double> given = {0.1, 1 + half, 1 + 3 * half, -1e300, 1e-50, -0.0};
  ExportedModel model;
  model.fields = {{"x", ElementType::kF32, {6}, 0, 24}};
  model.sample_bytes = 24;
  const auto data = OpenArrays(Files({Write("x.npy", "<f8", "(1, 6)", Bytes(given))}, {}), model);
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<float> floats(6);
  ASSERT_TRUE((*data)->ReadInputs(0, floats.data()).ok());
  EXPECT_THAT(floats, ElementsAre(0.1f, 1.0f, 1.0f + 0x1p-22f, -INFINITY, 0.0f, -0.0f));
  EXPECT_TRUE(std::signbit(floats[5]));
}

TEST_F(ArrayDataTest, FilesOfAField_GoOnWhereTheOneBeforeEnds) {
  const std::vector<std::string> x = {Write("x0.npy", "<f4", "(2, 2)", Bytes<float>({0, 1, 2, 3})),
                                      Write("x1.npy", "|u1", "(1, 2)", Bytes<uint8_t>({4, 5})),
                                      Write("x2.npy", "<f8", "(2, 2)", Bytes<double>({6, 7, 8, 9}))};
  const std::vector<std::string> y = {Write("y0.npy", "|i1", "(1,)", "\1"),
                                      Write("y1.npy", "<i8", "(4,)", Bytes<int64_t>({2, 3, 4, 5}))};
  const auto data = OpenArrays(Files(x, y), Model());
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ((*data)->count(), 5);
  for (int i = 0; i < 5; ++i) {
    char sample[16];
    ASSERT_TRUE((*data)->ReadInputs(i, sample).ok());
    std::vector<float> floats(2);
    int64_t label = 0;
    std::memcpy(floats.data(), sample, 8);
    std::memcpy(&label, sample + 8, 8);
    EXPECT_THAT(floats, ElementsAre(2 * i, 2 * i + 1)) << i;
    EXPECT_EQ(label, i + 1);
  }
  const auto other = OpenArrays(Files({x[0], x[1]}, y), Model());
  EXPECT_THAT(other.status().message(), HasSubstr("has 5 samples, and the field x has 3"));
  const std::string wrong = Write("wrong.npy", "<f4", "(1, 3)", Bytes<float>({0, 1, 2}));
  EXPECT_THAT(OpenArrays(Files({x[0], wrong}, y), Model()).status().message(),
              HasSubstr("wrong.npy has the sizes [1, 3]"));
}

TEST_F(ArrayDataTest, WrongFile_IsRefusedWithItsField) {
  const std::string x = Write("x.npy", "<f4", "(1, 2)", Bytes<float>({0, 1}));
  const std::string y = Write("y.npy", "|i1", "(1,)", "\1");
  EXPECT_EQ(Refusal(x, y), "");
  const std::string wide = Write("wide.npy", "<i4", "(1, 2)", Bytes<int32_t>({0, 1}));
  EXPECT_THAT(Refusal(wide, y), HasSubstr("data.arrays.x: "));
  EXPECT_THAT(Refusal(wide, y), HasSubstr("NumPy's type i4, and the model's field is float32"));
  EXPECT_THAT(Refusal(wide, y), HasSubstr("save it as array.astype"));
  EXPECT_THAT(Refusal(x, x), HasSubstr("data.arrays.y: "));
  EXPECT_THAT(Refusal(Write("wide.npy", "<f4", "(1, 3)", Bytes<float>({0, 1, 2})), y),
              HasSubstr("has the sizes [1, 3], and the model's field has [samples, 2]"));
  EXPECT_THAT(Refusal(Write("two.npy", "<f4", "(2, 2)", Bytes<float>({0, 1, 2, 3})), y),
              HasSubstr("has 1 samples, and the field x has 2"));
  EXPECT_THAT(Refusal(Write("short.npy", "<f4", "(4, 2)", Bytes<float>({0, 1})), y),
              HasSubstr("another length"));
  EXPECT_THAT(Refusal(Write("big.npy", ">f4", "(1, 2)", Bytes<float>({0, 1})), y),
              HasSubstr("not little-endian"));
  EXPECT_THAT(Refusal(Write("turned.npy", "<f4", "(1, 2)", Bytes<float>({0, 1}), "True"), y),
              HasSubstr("last dimension is not the fastest"));
  EXPECT_THAT(Refusal(folder_ + "/none.npy", y), HasSubstr("no file"));
  std::ofstream(folder_ + "/text.npy") << "this is a text, and no array";
  EXPECT_THAT(Refusal(folder_ + "/text.npy", y), HasSubstr("does not begin as one"));
}

}  // namespace
}  // namespace weft::array_data_test
