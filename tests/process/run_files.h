// Writes run files for tests of whole programs.
#ifndef WEFT_TESTS_PROCESS_RUN_FILES_H_
#define WEFT_TESTS_PROCESS_RUN_FILES_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>

#include "tests/process/command.h"

namespace weft {

// Writes `text.txt` and `run.yaml` into the folder and returns the run file's path: a tiny gpt, 3 steps of 4
// micro-batches, 4 stages, 1f1b. `changes` replaces whole top-level sections.
inline std::string WriteSmallRun(const TestFolder& folder,
                                 const std::map<std::string, std::string>& changes = {}) {
  std::string text;
  uint32_t state = 1;
  for (int i = 0; i < 30000; ++i) {
    state = state * 1664525u + 1013904223u;
    text += "abcdefgh \n"[(state >> 16) % 10];
  }
  // A run that reads the file fails if it is written to.
  if (!std::filesystem::exists(folder / "text.txt")) folder.Write("text.txt", text);
  std::map<std::string, std::string> sections = {
      {"model", "{gpt: {layers: 4, width: 32, heads: 2, context: 32}}"},
      {"data", "{text: {path: text.txt}, order: sequential}"},
      {"train", "{steps: 3, batch: 16, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}"},
      {"stages", "4"},
      {"schedule", "{1f1b: {}}"}};
  for (const auto& [key, value] : changes) sections[key] = value;
  std::string yaml = "name: small\n";
  for (const auto& [key, value] : sections) yaml += key + ": " + value + "\n";
  return folder.Write("run.yaml", yaml);
}

// Returns a text of letters, the same at each call.
inline std::string RandomLetters(int bytes) {
  std::mt19937 rng(7);
  std::string text;
  while (static_cast<int>(text.size()) < bytes) text += static_cast<char>('a' + rng() % 26);
  return text;
}

inline std::string BigEndian(uint32_t v) {
  return {static_cast<char>(v >> 24), static_cast<char>(v >> 16), static_cast<char>(v >> 8),
          static_cast<char>(v)};
}

// Writes `images.idx` and `labels.idx`: images of side x side pixels, whose brightness tells one of ten
// labels.
inline void WriteIdx(const TestFolder& folder, int count, int side) {
  std::mt19937 rng(3);
  std::string images = BigEndian(0x803) + BigEndian(count) + BigEndian(side) + BigEndian(side);
  std::string labels = BigEndian(0x801) + BigEndian(count);
  for (int i = 0; i < count; ++i) {
    const int label = static_cast<int>(rng() % 10);
    labels += static_cast<char>(label);
    for (int p = 0; p < side * side; ++p)
      images += static_cast<char>(p % 10 == label ? 200 + rng() % 50 : rng() % 60);
  }
  folder.Write("images.idx", images);
  folder.Write("labels.idx", labels);
}

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_RUN_FILES_H_
