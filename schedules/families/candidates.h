// Lists the schedules that are worth comparing for given sizes: every family with the parameters that fit
// them.
//
// Families lay stages and micro-batches on ranks in their own ways, so candidates differ in the number of
// ranks. Pure.
#ifndef WEFT_SCHEDULES_FAMILIES_CANDIDATES_H_
#define WEFT_SCHEDULES_FAMILIES_CANDIDATES_H_

#include <map>
#include <string>
#include <vector>

namespace weft {

struct Candidate {
  std::string name;
  std::map<std::string, std::string> parameters;
  std::string rule = "sync";
};

// Returns the candidates of a family. A family of rings has one for every number of ranks that divides the
// stages. Groups of rings have one for every number of groups that divides the micro-batches as well, as far
// as each rank has two passes of a stage; where a group has more micro-batches than stages, also with a bound
// on those in flight. A candidate that is another family's schedule (one group is a pipeline) is left out.
// MakeSchedule may still refuse some, and says why.
// Families and rules that read old weights are left out: they train otherwise.
std::vector<Candidate> Candidates(int stages, int microbatches);

// Returns the families and rules that read old weights, as far as the sizes allow.
std::vector<Candidate> OldWeightCandidates(int stages, int microbatches);

// Returns variants of the candidate with more micro-batches in flight: worth a look if transfers take time.
// Returns none for a candidate that bounds them otherwise.
std::vector<Candidate> DeeperCandidates(const Candidate& candidate, int microbatches);

// The same on a number of ranks, each with the stages that it needs there.
struct SizedCandidate {
  Candidate candidate;
  int stages = 0;
  std::string reason;  // why it cannot be had on so many ranks; empty where it can
};

// Returns every family on that many ranks: as many stages as ranks, or the least multiple of that, up to
// `max_stages`, with which the family takes exactly these ranks.
std::vector<SizedCandidate> CandidatesOnRanks(int ranks, int microbatches, int max_stages);

// Returns one schedule likewise. `stages` is 0, and `reason` says why, where it cannot be had on so many
// ranks.
SizedCandidate OnRanks(const Candidate& candidate, int ranks, int microbatches, int max_stages);

// Returns the schedules to try for real on a machine: all on one rank, every family in its plain form, and
// each rule and each form of weights by the families that take them, as far as the sizes allow. Schedules
// that read old weights are among them.
std::vector<Candidate> PlainCandidates(int stages, int microbatches);

}  // namespace weft

#endif  // WEFT_SCHEDULES_FAMILIES_CANDIDATES_H_
