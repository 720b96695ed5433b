// Collects the lines of a transcript's output: who does something, and indented below what follows from it.
#ifndef WEFT_TESTS_GOLDEN_TRANSCRIPT_PAGE_H_
#define WEFT_TESTS_GOLDEN_TRANSCRIPT_PAGE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weft {

// The topics that a transcript can hide.
enum class Topic { kMessages, kPackets, kTensors, kJobs, kRuns };
inline constexpr int kTopics = 5;
inline constexpr std::array<absl::string_view, kTopics> kTopicNames = {"messages", "packets", "tensors",
                                                                       "jobs", "runs"};

class TranscriptPage {
 public:
  void Show(Topic topic, bool shown) { shown_[static_cast<int>(topic)] = shown; }
  bool shows(Topic topic) const { return shown_[static_cast<int>(topic)]; }

  // Begins what follows from one event. The head of a hidden topic appears if a line below it does.
  void Head(Topic topic, std::string text) {
    head_ = std::move(text);
    if (shows(topic)) WriteHead();
  }
  // Begins what follows from one event that is only worth a line if something does.
  void HeadIfFollowed(std::string text) { head_ = std::move(text); }
  // Adds a line that was asked for.
  void Item(absl::string_view text) { Write(text); }
  // Adds a line below the head.
  void Line(Topic topic, absl::string_view text) {
    if (!shows(topic)) return;
    WriteHead();
    Write(absl::StrCat("  ", text));
  }

  // Returns all lines since the last call.
  std::string Take() {
    head_.clear();
    return std::exchange(text_, "");
  }

 private:
  void WriteHead() {
    if (!head_.empty()) Write(head_);
    head_.clear();
  }

  // Adds the line, in several if it is long. A worker's label becomes "process 1 (w1)".
  void Write(absl::string_view line) {
    std::string words;
    for (size_t at = 0; at < line.size();) {
      const size_t pid = std::min(line.find(", pid ", at), line.size());
      absl::StrAppend(&words, line.substr(at, pid - at));
      at = std::min(line.find(')', pid), line.size());
    }
    constexpr size_t kColumns = 110;
    absl::string_view rest = words;
    while (rest.size() > kColumns) {
      const size_t space = rest.rfind(' ', kColumns);
      if (space == rest.npos || space < kColumns / 2) break;
      absl::StrAppend(&text_, rest.substr(0, space), "\n      ");
      rest.remove_prefix(space + 1);
    }
    absl::StrAppend(&text_, rest, "\n");
  }

  std::array<bool, kTopics> shown_ = {true, false, true, true, true};
  std::string head_;  // head that has not been written
  std::string text_;
};

}  // namespace weft

#endif  // WEFT_TESTS_GOLDEN_TRANSCRIPT_PAGE_H_
