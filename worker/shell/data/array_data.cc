#include "worker/shell/data/array_data.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/casts.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/shell/data/data_file.h"

namespace weft {
namespace {

// Writes `n` numbers of a file as those of a field.
using Converter = void (*)(const char* from, int64_t n, char* to);

// An open file of one field.
struct ArrayFile {
  std::unique_ptr<DataFile> file;
  std::string type;             // as NumPy writes it, without the order of bytes: "f4", "u2"
  std::vector<int64_t> size;    // samples first
  int64_t begin = 0;            // start of the elements
  int64_t width = 0;            // bytes of an element
  Converter convert = nullptr;  // null where the bytes are the field's
};

// Returns what stands behind `'key':` in the header, a Python dictionary.
absl::string_view HeaderValueOf(absl::string_view header, absl::string_view key) {
  const size_t at = header.find(absl::StrCat("'", key, "':"));
  if (at == absl::string_view::npos) return "";
  return absl::StripAsciiWhitespace(header.substr(at + key.size() + 3));
}

// Returns the sizes of "(100, 28), ..".
std::optional<std::vector<int64_t>> ArraySizesOf(absl::string_view text) {
  const size_t end = text.find(')');
  if (text.empty() || text[0] != '(' || end == absl::string_view::npos) return std::nullopt;
  std::vector<int64_t> sizes;
  for (absl::string_view part : absl::StrSplit(text.substr(1, end - 1), ',', absl::SkipWhitespace())) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(part, &size) || size < 0 || size > int64_t{1} << 40) return std::nullopt;
    sizes.push_back(size);
  }
  return sizes;
}

absl::Status NoArray(const std::string& key, const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s is no NumPy file that can be read: %s; write it with numpy.save", key, path, std::string(why)));
}

// Reads the header of a file; numpy.lib.format describes it.
absl::StatusOr<std::string> ReadArrayHeader(const DataFile& file, const std::string& key, int64_t* begin) {
  constexpr absl::string_view kMagic = "\x93NUMPY";
  constexpr int64_t kMaxHeader = 1 << 16;
  std::array<char, 12> head{};
  if (file.bytes() < static_cast<int64_t>(head.size())) return NoArray(key, file.path(), "it is too short");
  if (absl::Status s = file.Read(0, head.size(), head.data()); !s.ok()) return s;
  if (absl::string_view(head.data(), kMagic.size()) != kMagic)
    return NoArray(key, file.path(), "it does not begin as one");
  const auto byte = [&head](int i) { return int64_t{static_cast<uint8_t>(head[i])}; };
  const bool is_long = byte(6) >= 2;
  const int64_t length =
      is_long ? byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24 : byte(8) | byte(9) << 8;
  const int64_t from = is_long ? 12 : 10;
  if (length > kMaxHeader || from + length > file.bytes())
    return NoArray(key, file.path(), "its header is cut short");
  std::string header(static_cast<size_t>(length), '\0');
  if (absl::Status s = file.Read(from, header.size(), header.data()); !s.ok()) return s;
  *begin = from + length;
  return header;
}

absl::StatusOr<ArrayFile> OpenArray(const std::string& path, const std::string& key) {
  auto file = DataFile::Open(path, key);
  if (!file.ok()) return file.status();
  ArrayFile array;
  const absl::StatusOr<std::string> header = ReadArrayHeader(**file, key, &array.begin);
  if (!header.ok()) return header.status();
  const absl::string_view type = HeaderValueOf(*header, "descr");
  if (type.size() < 5 || (type[0] != '\'' && type[0] != '"') || (type[1] != '<' && type[1] != '|'))
    return NoArray(key, path, "its elements are not little-endian numbers");
  array.type = std::string(type.substr(2, 2));
  array.width = type[3] - '0';
  if (!absl::StartsWith(HeaderValueOf(*header, "fortran_order"), "False"))
    return NoArray(key, path, "its last dimension is not the fastest");
  const std::optional<std::vector<int64_t>> size = ArraySizesOf(HeaderValueOf(*header, "shape"));
  if (!size.has_value() || size->empty()) return NoArray(key, path, "its first dimension counts no samples");
  array.size = *size;
  int64_t bytes = array.width;
  for (const int64_t n : array.size) {
    if (n == 0 || bytes > (*file)->bytes() / n) return NoArray(key, path, "it is empty, or cut short");
    bytes *= n;
  }
  if ((*file)->bytes() != array.begin + bytes)
    return NoArray(key, path, "it has another length than it says");
  array.file = *std::move(file);
  return array;
}

// Converts each number by the language's own rule.
template <typename From, typename To>
void Convert(const char* from, int64_t n, char* to) {
  for (int64_t i = 0; i < n; ++i) {
    From number;
    std::memcpy(&number, from + i * int64_t{sizeof(From)}, sizeof(From));
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8_t is a number, and no character.
    const To converted = static_cast<To>(number);
    std::memcpy(to + i * int64_t{sizeof(To)}, &converted, sizeof(To));
  }
}

// Returns the value of a half-precision number (IEEE 754 binary16), which float32 holds exactly.
float FloatOf(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  if (exponent == 0) return (sign != 0 ? -0x1p-24f : 0x1p-24f) * static_cast<float>(fraction);
  const uint32_t wide_exponent = exponent == 0x1f ? 0xff : exponent + 112;  // the biases differ by 127 - 15
  return absl::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

void WidenHalves(const char* from, int64_t n, char* to) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, from + i * int64_t{sizeof(half)}, sizeof(half));
    const float wide = FloatOf(half);
    std::memcpy(to + i * int64_t{sizeof(wide)}, &wide, sizeof(wide));
  }
}

// A type of NumPy whose numbers a field holds exactly; or float64, whose numbers are rounded to the nearest
// one of float32, as NumPy and PyTorch round them.
struct Reading {
  ElementType field;
  absl::string_view type;
  Converter convert;  // null where the bytes are the field's
};
constexpr Reading kReadings[] = {
    {ElementType::kF32, "f4", nullptr},
    {ElementType::kF32, "f8", Convert<double, float>},
    {ElementType::kF32, "f2", WidenHalves},
    {ElementType::kF32, "i1", Convert<int8_t, float>},
    {ElementType::kF32, "u1", Convert<uint8_t, float>},
    {ElementType::kF32, "b1", Convert<uint8_t, float>},
    {ElementType::kF32, "i2", Convert<int16_t, float>},
    {ElementType::kF32, "u2", Convert<uint16_t, float>},
    {ElementType::kI64, "i8", nullptr},
    {ElementType::kI64, "u8", nullptr},
    {ElementType::kI64, "i1", Convert<int8_t, int64_t>},
    {ElementType::kI64, "u1", Convert<uint8_t, int64_t>},
    {ElementType::kI64, "b1", Convert<uint8_t, int64_t>},
    {ElementType::kI64, "i2", Convert<int16_t, int64_t>},
    {ElementType::kI64, "u2", Convert<uint16_t, int64_t>},
    {ElementType::kI64, "i4", Convert<int32_t, int64_t>},
    {ElementType::kI64, "u4", Convert<uint32_t, int64_t>},
};

// Decides how the file's numbers become those of the field.
absl::Status FitField(const ExportedField& field, const std::string& key, ArrayFile& array) {
  const auto* const reading = std::find_if(std::begin(kReadings), std::end(kReadings), [&](const Reading& r) {
    return r.field == field.type && r.type == array.type;
  });
  if (reading == std::end(kReadings)) {
    const absl::string_view holds =
        field.type == ElementType::kF32
            ? "float32, which takes f4, f8, f2, bool and whole numbers of at most "
              "16 bits; save it as array.astype(\"float32\")"
            : "int64, which holds whole numbers and bool";
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s holds elements of NumPy's type %s, and the model's field is %s", key,
                        array.file->path(), array.type, holds));
  }
  array.convert = reading->convert;
  if (std::equal(array.size.begin() + 1, array.size.end(), field.sizes.begin(), field.sizes.end()))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s has the sizes [%s], and the model's field has [samples%s%s]", key, array.file->path(),
      absl::StrJoin(array.size, ", "), field.sizes.empty() ? "" : ", ", absl::StrJoin(field.sizes, ", ")));
}

// The files of one field: their samples follow one another.
class FieldFiles {
 public:
  FieldFiles(ExportedField field, std::string key) : field_(std::move(field)), key_(std::move(key)) {}
  FieldFiles(FieldFiles&&) = default;

  absl::Status Add(const std::string& path) {
    absl::StatusOr<ArrayFile> array = OpenArray(path, key_);
    if (!array.ok()) return array.status();
    if (absl::Status s = FitField(field_, key_, *array); !s.ok()) return s;
    ends_.push_back(count() + array->size[0]);
    files_.push_back(*std::move(array));
    return absl::OkStatus();
  }

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  const ExportedField& field() const { return field_; }

  absl::Status Read(int64_t sample, char* to) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), sample);
    const int64_t before = end == ends_.begin() ? 0 : *(end - 1);
    return ReadOf(files_[static_cast<size_t>(end - ends_.begin())], sample - before, to);
  }

 private:
  absl::Status ReadOf(const ArrayFile& array, int64_t sample, char* to) const {
    const int64_t elements = field_.bytes / ElementTypeBytes(field_.type), bytes = elements * array.width;
    const int64_t at = array.begin + sample * bytes;
    if (array.convert == nullptr) return array.file->Read(at, static_cast<size_t>(bytes), to);
    std::vector<char> numbers(static_cast<size_t>(bytes));
    if (absl::Status s = array.file->Read(at, numbers.size(), numbers.data()); !s.ok()) return s;
    array.convert(numbers.data(), elements, to);
    return absl::OkStatus();
  }

  ExportedField field_;
  std::string key_;  // in the run file
  std::vector<ArrayFile> files_;
  std::vector<int64_t> ends_;  // of each file: number of samples up to its end
};

class ArrayDataset final : public Dataset {
 public:
  ArrayDataset(std::vector<FieldFiles> fields, int64_t sample_bytes)
      : fields_(std::move(fields)), sample_bytes_(sample_bytes) {}

  int64_t count() const override { return fields_[0].count(); }
  DataType input_type() const override { return DataType::kUInt8; }
  int64_t inputs() const override { return sample_bytes_; }
  int64_t targets() const override { return 0; }

  absl::Status ReadInputs(int64_t sample, void* out) const override {
    std::memset(out, 0, static_cast<size_t>(sample_bytes_));
    for (const FieldFiles& field : fields_) {
      char* const to = static_cast<char*>(out) + field.field().begin;
      if (absl::Status s = field.Read(sample, to); !s.ok()) return s;
    }
    return absl::OkStatus();
  }
  absl::Status ReadTargets(int64_t, int64_t*) const override { return absl::OkStatus(); }

 private:
  const std::vector<FieldFiles> fields_;
  const int64_t sample_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenArrays(const ArraysData& data, const ExportedModel& model) {
  std::vector<FieldFiles> fields;
  for (const ExportedField& field : model.fields) {
    const std::string key = absl::StrCat("data.arrays.", field.name);
    const auto paths = data.paths.find(field.name);
    if (paths == data.paths.end()) return absl::InvalidArgumentError(absl::StrCat(key, ": has no file"));
    FieldFiles& files = fields.emplace_back(field, key);
    for (const std::string& path : paths->second) {
      if (absl::Status s = files.Add(path); !s.ok()) return s;
    }
    if (fields[0].count() == files.count()) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s has %d samples, and the field %s has %d; they do not belong together", key,
        absl::StrJoin(paths->second, ", "), files.count(), model.fields[0].name, fields[0].count()));
  }
  return std::make_unique<ArrayDataset>(std::move(fields), model.sample_bytes);
}

}  // namespace weft
