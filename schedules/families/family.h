// Holds the parts that the files of schedules/families share: a family's entry in the catalogue, placements,
// priorities and parameters.
//
// Each file of this folder holds one group of families and gives its entries to the catalogue (families.cc).
// Every maker gets sizes of at least 1 and only parameters that its entry names; it checks values and
// constraints itself and gives the reasons for them. Pure.
#ifndef WEFT_SCHEDULES_FAMILIES_FAMILY_H_
#define WEFT_SCHEDULES_FAMILIES_FAMILY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedules/families/families.h"
#include "schedules/schedule.h"

namespace weft {

using FamilyParameters = std::map<std::string, std::string>;

struct FamilyEntry {
  Family family;
  absl::StatusOr<Schedule> (*make)(const FamilyParameters&, int stages, int microbatches);
};

// Return the groups, one a file.
std::vector<FamilyEntry> DataParallelFamilies();        // ddp, fsdp
std::vector<FamilyEntry> PipelineFamilies();            // gpipe, 1f1b
std::vector<FamilyEntry> LoopedFamilies();              // lpp, fslpp, depth_first, breadth_first
std::vector<FamilyEntry> InterleavedFamilies();         // interleaved
std::vector<FamilyEntry> ZeroBubbleFamilies();          // zb_h1, zb_h2, zb_v
std::vector<FamilyEntry> ControllableMemoryFamilies();  // v_half, v_min
std::vector<FamilyEntry> BidirectionalFamilies();       // dualpipe, dualpipe_v
std::vector<FamilyEntry> PyramidFamilies();             // cdp_mp
std::vector<FamilyEntry> PeriodicFamilies();            // periodic

// Returns a schedule with its name and sizes; everything else is empty.
Schedule SizedSchedule(absl::string_view name, int stages, int microbatches, int ranks);

// Returns the parameter as a whole number >= 1; `otherwise` if it is not given, an error if there is no
// `otherwise`.
absl::StatusOr<int> PositiveParameter(absl::string_view family, const FamilyParameters& parameters,
                                      const std::string& name, std::optional<int> otherwise = std::nullopt);

// Returns unique priorities: the first part that differs decides. `late` sorts kinds, 0 to 3; minor < minors,
// major < majors.
int64_t PackPriority(const Job& job, int late, int64_t major, int64_t majors, int64_t minor, int64_t minors);

// Returns priorities that put forwards before backwards (or the reverse), then follow the order of
// micro-batches.
std::function<int64_t(const Job&)> PriorityByMicrobatch(int stages, int microbatches, bool forward_first);

// Returns the number of ranks W of stages laid round them: s mod W, stages = v * W with v >= 2. Reads the
// parameter `ranks`.
absl::StatusOr<int> RanksOfLoop(absl::string_view family, const FamilyParameters& parameters, int stages);

// Returns a schedule of split backwards with two stages a rank, s and 2W-1-s, and no order yet.
absl::StatusOr<Schedule> FoldedSchedule(absl::string_view name, int stages, int microbatches);

}  // namespace weft

#endif  // WEFT_SCHEDULES_FAMILIES_FAMILY_H_
