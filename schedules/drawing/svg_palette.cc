#include "schedules/drawing/svg_palette.h"

#include <cmath>
#include <map>

#include "absl/strings/str_format.h"

namespace weft {
namespace {

struct Colour {
  double red, green, blue;
};

// Shades of a kind of job, from the first stage to the last. Lightness falls from forward to backward without
// an overlap of their ranges, so the kinds can be told apart in grey.
struct Palette {
  Colour first, last;
  const char* text;
};
constexpr std::array<Palette, kJobKinds> kPalette = {{
    {{0xcf, 0xe3, 0xf3}, {0x9f, 0xc8, 0xe6}, "#17374f"},  // forward: light blue
    {{0x3b, 0x7f, 0x9e}, {0x1d, 0x4f, 0x69}, "#ffffff"},  // backward: dark blue
    {{0x4f, 0x97, 0x8d}, {0x2d, 0x6f, 0x66}, "#ffffff"},  // backward_input: dark green-blue
    {{0x9b, 0xb4, 0x88}, {0x7d, 0x9b, 0x68}, "#1f2d17"},  // backward_weight: middle green
    {{0xe8, 0xb4, 0x4f}, {0xe8, 0xb4, 0x4f}, "#4a3200"},  // reduce: amber
    {{0xc7, 0x6b, 0x4f}, {0xc7, 0x6b, 0x4f}, "#ffffff"},  // update: brick
}};

const std::map<std::string, const char*>& CauseColours() {
  static const auto* const colours = new std::map<std::string, const char*>{
      {"transfer", "#7d5ba6"}, {"limit", "#b8a13a"},    {"memory", "#c2434a"}, {"dispatch", "#9a958a"},
      {"reduce", "#d99a2b"},   {"recovery", "#d0609a"}, {"no_work", "#d8d4ca"}};
  return *colours;
}

}  // namespace

std::string ColourOfKind(JobKind kind, int tint) {
  const Palette& palette = kPalette[static_cast<int>(kind)];
  const double t = static_cast<double>(tint) / (kTints - 1);
  const auto mix = [t](double a, double b) { return static_cast<int>(std::lround(a + (b - a) * t)); };
  return absl::StrFormat("#%02x%02x%02x", mix(palette.first.red, palette.last.red),
                         mix(palette.first.green, palette.last.green),
                         mix(palette.first.blue, palette.last.blue));
}

const char* TextColourOfKind(JobKind kind) { return kPalette[static_cast<int>(kind)].text; }

const char* ColourOfCause(const std::string& cause) {
  const auto found = CauseColours().find(cause);
  return found == CauseColours().end() ? "#9a958a" : found->second;
}

int CargoOf(TensorKind tensor) {
  switch (tensor) {
    case TensorKind::kActivation:
    case TensorKind::kInputGradient:
      return 0;
    case TensorKind::kWeights:
      return 1;
    case TensorKind::kGradient:
    case TensorKind::kGradientSum:
    case TensorKind::kNorm:
      return 2;
    case TensorKind::kState:
      return 3;
    case TensorKind::kOrder:
    case TensorKind::kCopy:
      break;
  }
  return kNoCargo;
}

}  // namespace weft
