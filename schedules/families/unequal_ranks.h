// Gives ranks of different speed different work: micro-batches dealt to them, or stages placed on them, in
// proportion to their speeds.
//
// Families deal in equal parts, so a slow rank holds back all others. These placements are custom schedules,
// whose formulas say the rank of each micro-batch or stage, so that nothing else has to know of them. Every
// rank gets at least one part. Pure.
#ifndef WEFT_SCHEDULES_FAMILIES_UNEQUAL_RANKS_H_
#define WEFT_SCHEDULES_FAMILIES_UNEQUAL_RANKS_H_

#include <string>
#include <vector>

#include "schedules/families/candidates.h"
#include "schedules/job.h"

namespace weft {

// Deals the parts, all alike, one after the other: each to the rank that would have finished it first. So
// neighbouring parts are on different ranks where speeds allow, and sums in their order wait least. Requires
// at least as many parts as ranks.
std::vector<Rank> DealBySpeed(int parts, const std::vector<double>& speeds);

// Places neighbouring parts on a rank, ranks in their order, so that the rank that takes longest takes as
// little time as possible. Requires at least as many parts as ranks.
std::vector<Rank> PlaceBySpeed(const std::vector<double>& work, const std::vector<double>& speeds);

// Return the schedule with these ranks of the micro-batches, where every rank holds all weights; and that
// with these ranks of the stages. `order`: as tie_rule.h names it.
Candidate DealtCandidate(const std::vector<Rank>& rank_of_microbatch, int ranks);
Candidate PlacedCandidate(const std::vector<Rank>& rank_of_stage, int ranks, const std::string& order);

// Returns the formula over the variable that gives the ranks: "b % 3 < 2 ? 0 : 1".
std::string RankFormula(const std::vector<Rank>& ranks, const std::string& variable);

}  // namespace weft

#endif  // WEFT_SCHEDULES_FAMILIES_UNEQUAL_RANKS_H_
