#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "schedules/drawing/drawing.h"

namespace weft {
namespace {

constexpr size_t kGap = 2;         // spaces between columns
constexpr size_t kNarrowest = 12;  // least columns of a column that is broken

bool LooksNumeric(absl::string_view cell) {
  return cell.empty() || cell == "-" || (cell[0] >= '0' && cell[0] <= '9') ||
         (cell.size() > 1 && cell[0] == '-' && cell[1] >= '0' && cell[1] <= '9');
}

// Returns the lines of a cell that has `width` columns: broken after spaces and commas, and anywhere where
// there is none.
std::vector<std::string> Broken(absl::string_view cell, size_t width) {
  std::vector<std::string> lines = {""};
  size_t used = 0;
  while (!cell.empty()) {
    const size_t end = cell.find_first_of(" ,");
    const absl::string_view word = cell.substr(0, end == absl::string_view::npos ? end : end + 1);
    cell.remove_prefix(word.size());
    const size_t needs = TextColumns(word) - (word.back() == ' ' ? 1 : 0);
    if (used > 0 && used + needs > width) {
      lines.emplace_back();
      used = 0;
    }
    for (const char c : word) {
      const bool begins = (c & 0xc0) != 0x80;
      if (begins && used == width && c != ' ') {
        lines.emplace_back();
        used = 0;
      }
      if (used == width && c == ' ') continue;
      lines.back() += c;
      used += begins ? 1 : 0;
    }
  }
  for (std::string& line : lines) {
    while (!line.empty() && line.back() == ' ') line.pop_back();
  }
  return lines;
}

class Table {
 public:
  Table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
        const TextStyle& style)
      : header_(header), rows_(rows), style_(style), width_(std::max(style.width, 20)) {
    for (size_t c = 0; c < header.size(); ++c) {
      size_t width = TextColumns(header[c]);
      bool numeric = true;
      for (const auto& row : rows) {
        width = std::max(width, TextColumns(row[c]));
        numeric = numeric && LooksNumeric(row[c]);
      }
      widths_.push_back(width);
      right_.push_back(numeric);
    }
  }

  std::string Draw() {
    if (header_.empty()) return "";
    // The key must leave room for a column beside it.
    if (header_.size() > 1) widths_[0] = std::min(widths_[0], std::max(kNarrowest, width_ / 2));
    widths_[0] = std::min(widths_[0], width_);
    for (size_t next = 1; next < header_.size() || next == 1;) {
      std::vector<size_t> block = {0};
      size_t used = widths_[0];
      for (; next < header_.size(); ++next) {
        if (block.size() == 1) widths_[next] = std::min(widths_[next], width_ - used - kGap);
        if (used + kGap + widths_[next] > width_) break;
        used += kGap + widths_[next];
        block.push_back(next);
      }
      if (!out_.empty()) out_ += '\n';
      Line(header_, block, /*heading=*/true);
      for (const auto& row : rows_) Line(row, block, /*heading=*/false);
      if (header_.size() == 1) break;
    }
    return std::move(out_);
  }

 private:
  // Writes a row of a block, in as many lines as its longest cell has.
  void Line(const std::vector<std::string>& cells, const std::vector<size_t>& block, bool heading) {
    std::vector<std::vector<std::string>> broken;
    size_t height = 1;
    for (const size_t c : block) {
      broken.push_back(TextColumns(cells[c]) <= widths_[c] ? std::vector<std::string>{cells[c]}
                                                           : Broken(cells[c], widths_[c]));
      height = std::max(height, broken.back().size());
    }
    for (size_t l = 0; l < height; ++l) {
      std::string text;
      for (size_t i = 0; i < block.size(); ++i) {
        const std::string cell = l < broken[i].size() ? broken[i][l] : "";
        const std::string pad(widths_[block[i]] - TextColumns(cell), ' ');
        absl::StrAppend(&text, i > 0 ? std::string(kGap, ' ') : "", right_[block[i]] ? pad : "", cell,
                        right_[block[i]] ? "" : pad);
      }
      while (!text.empty() && text.back() == ' ') text.pop_back();
      absl::StrAppend(&out_, heading ? Heading(text, style_) : text, "\n");
    }
  }

  const std::vector<std::string>& header_;
  const std::vector<std::vector<std::string>>& rows_;
  const TextStyle& style_;
  const size_t width_;
  std::vector<size_t> widths_;
  std::vector<bool> right_;
  std::string out_;
};

}  // namespace

size_t TextColumns(absl::string_view text) {
  // Each character has one byte that does not continue a UTF-8 sequence.
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string Heading(absl::string_view text, const TextStyle& style) {
  return style.colour && !text.empty() ? absl::StrCat("\x1b[1m", text, "\x1b[0m") : std::string(text);
}

std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows, const TextStyle& style) {
  return Table(header, rows, style).Draw();
}

std::string WrapText(absl::string_view text, int width, int indent) {
  std::vector<std::string> lines;
  for (const absl::string_view paragraph : absl::StrSplit(text, '\n')) {
    std::string line;
    bool begun = false;  // the line has a word
    for (const absl::string_view word : absl::StrSplit(paragraph, ' ')) {
      if (begun && TextColumns(line) + 1 + TextColumns(word) > static_cast<size_t>(std::max(width, 1))) {
        lines.push_back(line);
        line = std::string(indent, ' ');
        begun = false;
      }
      absl::StrAppend(&line, begun ? " " : "", word);
      begun = true;
    }
    lines.push_back(line);
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace weft
