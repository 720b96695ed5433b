#include "schedules/drawing/svg_text.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft {

std::string EscapeXml(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

std::string SvgLength(double x) {
  std::string text = absl::StrFormat("%.2f", x);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

double TickDistance(double span) {
  const double power = std::pow(10, std::floor(std::log10(span / 5)));
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (span / (power * factor) >= 5) return power * factor;
  }
  return power;
}

std::string OpenSvg(double width, double height, absl::string_view title, absl::string_view style) {
  return absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", SvgLength(width), " ", SvgLength(height),
      "\" width=\"", SvgLength(width), "\" height=\"", SvgLength(height),
      "\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\" fill=\"#333\">\n", "<title>",
      EscapeXml(title), "</title>\n", style, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
}

std::string SvgHeading(double x, absl::string_view title, absl::string_view subtitle) {
  return absl::StrCat("<text x=\"", SvgLength(x), "\" y=\"26\" font-size=\"17\" font-weight=\"600\">",
                      EscapeXml(title), "</text>\n", "<text x=\"", SvgLength(x), "\" y=\"46\" fill=\"#666\">",
                      EscapeXml(subtitle), "</text>\n");
}

std::string SvgVerticalTitle(double x, double y, absl::string_view title) {
  return absl::StrCat("<text transform=\"translate(", SvgLength(x), " ", SvgLength(y),
                      ") rotate(-90)\" text-anchor=\"middle\" font-size=\"13\" fill=\"#555\">",
                      EscapeXml(title), "</text>\n");
}

std::string SvgLevel(double x, double y, double plot, absl::string_view label) {
  return absl::StrCat("<path d=\"M", SvgLength(x), " ", SvgLength(y), "h", SvgLength(plot),
                      "\" stroke=\"#e6e3dc\"/><text x=\"", SvgLength(x - 8), "\" y=\"", SvgLength(y + 4.5),
                      "\">", label, "</text>\n");
}

std::string SvgTimeAxis(double x, double y, double plot, double span, DrawnTime time) {
  const bool seconds = time == DrawnTime::kSeconds;
  const double scale = !seconds || span >= 5 ? 1 : span >= 5e-3 ? 1e3 : 1e6;
  const char* unit = !seconds       ? "time units"
                     : scale == 1   ? "time (s)"
                     : scale == 1e3 ? "time (ms)"
                                    : "time (us)";
  const double distance = TickDistance(span * scale) / scale;
  const auto at = [&](int tick) { return SvgLength(x + tick * distance / span * plot); };
  std::string out;
  absl::StrAppend(&out, "<g stroke=\"#bbb\" fill=\"none\"><path d=\"M", SvgLength(x), " ", SvgLength(y), "h",
                  SvgLength(plot));
  const int ticks = static_cast<int>(std::floor(span / distance * (1 + 1e-9)));
  for (int i = 0; i <= ticks; ++i) absl::StrAppend(&out, "M", at(i), " ", SvgLength(y), "v5");
  absl::StrAppend(&out, "\"/></g>\n<g font-size=\"11\" fill=\"#666\" text-anchor=\"middle\">\n");
  for (int i = 0; i <= ticks; ++i) {
    absl::StrAppend(&out, "<text x=\"", at(i), "\" y=\"", SvgLength(y + 18), "\">",
                    absl::StrFormat("%g", i * distance * scale), "</text>\n");
  }
  absl::StrAppend(&out, "<text x=\"", SvgLength(x + plot + 24), "\" y=\"", SvgLength(y + 18),
                  "\" text-anchor=\"start\">", unit, "</text>\n</g>\n");
  return out;
}

}  // namespace weft
