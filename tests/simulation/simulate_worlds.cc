// Plays simulated worlds from the command line: one seed again, many, the museum, or until it is stopped.
//
//   simulate_worlds [WORLD ..] [--seed N | --seeds N | --nightly] [--from N]
//   simulate_worlds --museum FILE
//   simulate_worlds --list
//
// Without a WORLD it plays all of them, seed by seed. The first world with a problem ends it: it prints what
// plays it again, and exits with 1. --nightly goes on until Ctrl-C, from a seed that the time of day gives.
//
// A line of the museum's file is WORLD SEED COMMIT, then what the fault was; # begins a comment. Each was a
// fault of this code, and COMMIT mended it.
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/simulation/named_worlds.h"

namespace weft {
namespace {

constexpr int kUsage = 2;

struct Choice {
  std::vector<const NamedWorld*> worlds;
  uint64_t from = 1, seeds = 100;
  bool nightly = false, list = false;
  std::string museum;
};

int Refuse(const std::string& why) {
  std::cerr << "simulate_worlds: " << why << "\n";
  return kUsage;
}

// Returns true if the world of the seed has no problem; else says what plays it again.
bool IsRight(const NamedWorld& world, uint64_t seed) {
  const WorldResult result = Play(world, seed);
  if (result.problem.empty()) return true;
  std::cout << "FAILED: simulate_worlds " << Describe(world, seed) << "\n  " << result.problem << std::endl;
  return false;
}

int PlaySeeds(const Choice& choice) {
  constexpr uint64_t kTold = 100;
  for (uint64_t i = 0; choice.nightly || i < choice.seeds; ++i) {
    for (const NamedWorld* world : choice.worlds) {
      if (!IsRight(*world, choice.from + i)) return 1;
    }
    if (choice.nightly && i % kTold == kTold - 1)
      std::cout << "seeds " << choice.from << " to " << choice.from + i << " of " << choice.worlds.size()
                << " worlds: right" << std::endl;
  }
  std::cout << choice.seeds << " seeds of " << choice.worlds.size() << " worlds: right\n";
  return 0;
}

int PlayMuseum(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Refuse(absl::StrCat("cannot read ", path));
  int faults = 0, wrong = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name, commit;
    uint64_t seed = 0;
    if (!(words >> name >> seed >> commit)) return Refuse(absl::StrCat(path, ": not understood: ", line));
    const NamedWorld* world = FindWorld(name);
    if (world == nullptr) return Refuse(absl::StrCat(path, ": no world ", name));
    ++faults;
    if (!IsRight(*world, seed)) ++wrong, std::cout << "  is back: " << line << "\n";
  }
  if (faults == 0) return Refuse(absl::StrCat(path, " names no fault"));
  std::cout << faults << " faults, " << wrong << " of them are back\n";
  return wrong > 0 ? 1 : 0;
}

int Main(const std::vector<std::string>& arguments) {
  Choice choice;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const std::string value = i + 1 < arguments.size() ? arguments[i + 1] : "";
    uint64_t number = 0;
    const bool is_number = absl::SimpleAtoi(value, &number);
    if (word == "--nightly") {
      choice.nightly = true;
      choice.from = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) / 1000;
    } else if (word == "--list") {
      choice.list = true;
    } else if (word == "--museum" && !value.empty()) {
      choice.museum = value, ++i;
    } else if ((word == "--seed" || word == "--seeds" || word == "--from") && is_number) {
      (word == "--seeds" ? choice.seeds : choice.from) = number, ++i;
      if (word == "--seed") choice.seeds = 1;
    } else if (const NamedWorld* world = FindWorld(word)) {
      choice.worlds.push_back(world);
    } else {
      return Refuse(absl::StrCat("not understood: ", word, "; --list names the worlds"));
    }
  }
  if (choice.list) {
    for (const NamedWorld& world : NamedWorlds()) std::cout << world.name << ": " << world.what << "\n";
    return 0;
  }
  if (!choice.museum.empty()) return PlayMuseum(choice.museum);
  if (choice.worlds.empty()) {
    for (const NamedWorld& world : NamedWorlds()) choice.worlds.push_back(&world);
  }
  return PlaySeeds(choice);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main({argv + 1, argv + argc}); }
