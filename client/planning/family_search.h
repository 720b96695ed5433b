// Searches the families of schedules for the one that takes a step in the least time, on a number of ranks
// and within their memory: which family with which parameters, how many stages and micro-batches, where the
// layers are cut, and which stages recompute.
//
// Every family is predicted in every size, with one policy for the activations of all stages and layers cut
// into near-equal parts. Then the best few are changed by one layer that moves over a cut, or one stage that
// changes its policy (or both, where the larger stage would not fit), as long as that helps: predictions know
// speeds, links and memory, so the cut comes to suit them. Schedules that lack memory are changed so, too,
// until they fit: those that could be the fastest, or all where nothing fits. All parts end when they are
// told to stop, with the best so far.
//
// Families deal micro-batches in equal parts. For ranks of different speeds there is also data parallelism
// that deals them by speed. Families that read old weights train otherwise; they are left out unless they are
// asked for. Pure.
#ifndef WEFT_CLIENT_PLANNING_FAMILY_SEARCH_H_
#define WEFT_CLIENT_PLANNING_FAMILY_SEARCH_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/planning/plan_choice.h"

namespace weft {

struct FamilySearchOptions {
  int ranks = 1;
  std::vector<double> work;                           // by layer: time of a forward and a backward
  std::vector<int> microbatches = {1};                // that are tried
  std::vector<std::string> activations = {"retain"};  // policies that a stage may have
  std::string reduction = "ordered";
  std::vector<double> speeds;  // of the ranks; empty where all are equally fast
  std::string schedule;        // only this one: a family's name, or one with parameters; empty for all
  // The predictor within any memory, and the memory of each rank, by which choices that lack memory are
  // changed until they fit. Without a predictor, none is.
  PredictWithin predict_within;
  double memory = 0;
  bool slow_links = false;  // transfers take time: forms with more micro-batches in flight are tried, too
  std::function<bool()> stop = [] { return false; };
  // Stops, where some choice fits, the changes of those that lack memory.
  std::function<bool()> stop_fitting = [] { return false; };
};

struct FamilySearchResult {
  std::vector<PredictedChoice> best;  // the best of each schedule, fastest first
  bool stopped = false;               // before all was tried
  absl::Status reason;                // why the closest choice is impossible, if there is no best one
  // Choices that lack only memory, the best of each schedule as predicted without a limit, fastest first.
  std::vector<PredictedChoice> lacking_memory;
  // The bytes of each rank with which this search finds a choice, if there is no best one; 0 where that is
  // not known.
  double enough = 0;
};

// Returns the best choices. InvalidArgument for an unknown schedule; OutOfRange for one that cannot be had on
// so many ranks.
absl::StatusOr<FamilySearchResult> SearchFamilies(const FamilySearchOptions& options,
                                                  const PredictPlan& predict);

// Cuts the layers into so many stages of near-equal work.
std::vector<int> CutByWork(const std::vector<double>& work, int stages);

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_FAMILY_SEARCH_H_
