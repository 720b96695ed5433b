// Names the kinds of simulated worlds, so that a name and a seed say a whole world: in the tests, in the
// museum of faults that were found (museum.txt), and on the command line of simulate_worlds.
//
// A world has faults of one kind, drawn from the seed, and says what must hold of its end beyond what every
// world checks (world.h).
#ifndef WEFT_TESTS_SIMULATION_NAMED_WORLDS_H_
#define WEFT_TESTS_SIMULATION_NAMED_WORLDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/simulation/world.h"

namespace weft {

struct NamedWorld {
  std::string name;
  std::string what;  // what happens there, and what must hold
  WorldOptions (*options)(uint64_t seed);
  // Returns what is wrong with the end of the world; "" if nothing is. Null for no check of its own.
  std::string (*check)(const WorldOptions& options, const WorldResult& result) = nullptr;
};

const std::vector<NamedWorld>& NamedWorlds();
// Returns the world of that name; null for none.
const NamedWorld* FindWorld(absl::string_view name);

// Plays the world of the seed to its end, with its own check.
WorldResult Play(const NamedWorld& world, uint64_t seed);
// Returns "killed --seed 17: 1f1b,rule=sync S=4 B=8 .., kills 2": what was drawn, and how to play it again.
std::string Describe(const NamedWorld& world, uint64_t seed);
std::string Describe(absl::string_view world, const WorldOptions& options);

}  // namespace weft

#endif  // WEFT_TESTS_SIMULATION_NAMED_WORLDS_H_
