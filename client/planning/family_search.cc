#include "client/planning/family_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/files/predicted_run.h"
#include "client/planning/cut_moves.h"
#include "client/planning/needed_memory.h"
#include "run/model_layers.h"
#include "run/schedule_spec.h"
#include "run/stage_cut.h"
#include "schedules/families/candidates.h"
#include "schedules/families/unequal_ranks.h"

namespace weft {
namespace {

constexpr int kImproved = 6;   // schedules whose cut and activations are improved
constexpr int kMultiples = 4;  // of the least number of stages

bool IsFaster(const PredictedChoice& a, const PredictedChoice& b) {
  return a.prediction.step < b.prediction.step;
}

// Returns what the choice is called: choices of one name differ in their sizes, cut and activations.
std::string NameOf(const PlanChoice& choice) {
  ScheduleSpec spec = choice.schedule;
  spec.activations = ScheduleSpec().activations;
  return ToText(spec);
}

class FamilySearch {
 public:
  FamilySearch(const FamilySearchOptions& options, const PredictPlan& predict)
      : options_(options), predict_(predict), layers_(static_cast<int>(options.work.size())) {}

  absl::StatusOr<FamilySearchResult> Run() {
    for (const int microbatches : options_.microbatches) {
      const auto sized = SchedulesFor(microbatches);
      if (!sized.ok()) return sized.status();
      for (const std::string& activations : options_.activations) {
        for (const SizedCandidate& candidate : *sized) TrySizes(candidate, microbatches, activations);
      }
    }
    for (auto& [name, found] : found_) result_.best.push_back(std::move(found));
    std::stable_sort(result_.best.begin(), result_.best.end(), IsFaster);
    const size_t improved = std::min<size_t>(kImproved, result_.best.size());
    for (size_t i = 0; i < improved; ++i) Improve(&result_.best[i]);
    std::stable_sort(result_.best.begin(), result_.best.end(), IsFaster);
    if (options_.predict_within) FitLacking();
    std::stable_sort(result_.best.begin(), result_.best.end(), IsFaster);
    return std::move(result_);
  }

 private:
  // Returns the schedules that can be had on the ranks, with the stages that they need at least.
  absl::StatusOr<std::vector<SizedCandidate>> SchedulesFor(int microbatches) const {
    std::vector<SizedCandidate> all;
    if (options_.schedule.empty()) {
      all = CandidatesOnRanks(options_.ranks, microbatches, layers_);
      if (!options_.speeds.empty() && microbatches >= options_.ranks) {
        const std::vector<Rank> dealt = DealBySpeed(microbatches, options_.speeds);
        all.push_back({DealtCandidate(dealt, options_.ranks), 1, ""});
      }
    } else {
      const auto spec = ParseScheduleText(options_.schedule);
      if (!spec.ok()) return spec.status();
      if (spec->parameters.empty() && spec->rule == ScheduleSpec().rule) {
        for (const SizedCandidate& sized : CandidatesOnRanks(options_.ranks, microbatches, layers_)) {
          if (sized.candidate.name == spec->name) all.push_back(sized);
        }
      }
      const Candidate named = {spec->name, spec->parameters, spec->rule};
      if (all.empty()) all.push_back(OnRanks(named, options_.ranks, microbatches, layers_));
    }
    std::vector<SizedCandidate> sized;
    for (const SizedCandidate& candidate : all) {
      if (!candidate.reason.empty()) continue;
      sized.push_back(candidate);
      if (!options_.slow_links) continue;
      for (const Candidate& deeper : DeeperCandidates(candidate.candidate, microbatches))
        sized.push_back({deeper, candidate.stages, ""});
    }
    const bool alone = !options_.schedule.empty() && options_.microbatches.size() == 1;
    if (!sized.empty() || !alone || all.empty()) return sized;
    return absl::OutOfRangeError(absl::StrCat("--schedule: ", options_.schedule, " ", all[0].reason));
  }

  void TrySizes(const SizedCandidate& sized, int microbatches, const std::string& activations) {
    for (int multiple = 1; multiple <= kMultiples; ++multiple) {
      const int stages = multiple * sized.stages;
      if (stages > layers_ || Stopped()) return;
      PlanChoice choice;
      choice.schedule.name = sized.candidate.name;
      choice.schedule.parameters = sized.candidate.parameters;
      choice.schedule.rule = sized.candidate.rule;
      choice.schedule.reduction = options_.reduction;
      choice.schedule.activations = activations;
      choice.layers_of_stage = CutByWork(options_.work, stages);
      choice.microbatches = microbatches;
      Try(choice);
    }
  }

  bool Stopped() {
    result_.stopped = result_.stopped || options_.stop();
    return result_.stopped;
  }

  // Keeps the choice if it is the best of its name.
  void Try(const PlanChoice& choice) {
    auto prediction = Predict(choice);
    if (!prediction.ok()) {
      const bool memory = IsAboutMemory(prediction.status());
      if (memory) lacking_[NameOf(choice)].push_back(choice);
      if (result_.reason.ok() || memory) result_.reason = prediction.status();
      return;
    }
    PredictedChoice predicted = {choice, *std::move(prediction)};
    const auto [place, added] = found_.emplace(NameOf(choice), predicted);
    if (!added && IsFaster(predicted, place->second)) place->second = std::move(predicted);
  }

  absl::StatusOr<PlanPrediction> Predict(const PlanChoice& choice) const { return Allowed(predict_(choice)); }

  absl::StatusOr<PlanPrediction> PredictIn(const PlanChoice& choice, double memory) const {
    return Allowed(options_.predict_within(choice, memory));
  }

  // Returns the prediction if the choice may be taken.
  absl::StatusOr<PlanPrediction> Allowed(absl::StatusOr<PlanPrediction> prediction) const {
    if (!prediction.ok()) return prediction;
    if (prediction->ranks != options_.ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat("takes ", prediction->ranks, " ranks, not ", options_.ranks));
    }
    if (prediction->staleness > 0 && options_.schedule.empty())
      return absl::InvalidArgumentError("reads old weights");
    // The two jobs of a pair may share a core; then they take longer than one after the other.
    if (prediction->guesses_pairs && options_.schedule.empty()) {
      return absl::InvalidArgumentError(
          "it has overlapped pairs, and the profile has no `overlapped`; name it with --schedule to plan "
          "with it");
    }
    return prediction;
  }

  // Takes the changed choice if it is faster.
  bool TakeIfFaster(const PlanChoice& changed, PredictedChoice* best) {
    if (Stopped()) return false;
    auto prediction = Predict(changed);
    lacks_memory_ = !prediction.ok() && IsAboutMemory(prediction.status());
    if (!prediction.ok() || prediction->step >= best->prediction.step * kBetter) return false;
    *best = {changed, *std::move(prediction)};
    return true;
  }

  // Takes the choice with another policy for the activations of a stage, if that is faster.
  bool TakeWithOtherPolicy(const PlanChoice& choice, int stage, PredictedChoice* best) {
    return ChangePolicy(choice, stage, options_.activations,
                        [&](const PlanChoice& changed) { return TakeIfFaster(changed, best); });
  }

  // Gives one stage another policy for its activations.
  bool ChangeActivations(PredictedChoice* best) {
    for (int s = 0; s < best->choice.stages(); ++s) {
      if (TakeWithOtherPolicy(best->choice, s, best)) return true;
    }
    return false;
  }

  // Takes another cut if it is faster. Where it needs too much memory, the stage that has grown may have
  // another policy.
  bool TakeCut(const PlanChoice& moved, PredictedChoice* best) {
    if (TakeIfFaster(moved, best)) return true;
    if (!lacks_memory_) return false;
    for (int s = 0; s < moved.stages(); ++s) {
      if (moved.layers_of_stage[s] > best->choice.layers_of_stage[s])
        return TakeWithOtherPolicy(moved, s, best);
    }
    return false;
  }

  void Improve(PredictedChoice* best) {
    const auto take = [&](const PlanChoice& changed) { return TakeCut(changed, best); };
    while (MoveLayer(best->choice, take) || (options_.activations.size() > 1 && ChangeActivations(best))) {
    }
  }

  // Predicts those that lack memory without a limit, the fastest of each schedule that has no choice yet.
  void PredictLacking() {
    for (const auto& [name, choices] : lacking_) {
      std::optional<PredictedChoice> fastest;
      for (size_t i = 0; i < choices.size() && !found_.contains(name) && !Stopped(); ++i) {
        auto prediction = PredictIn(choices[i], 0);
        if (!prediction.ok()) continue;
        PredictedChoice predicted = {choices[i], *std::move(prediction)};
        if (!fastest.has_value() || IsFaster(predicted, *fastest)) fastest = std::move(predicted);
      }
      if (fastest.has_value()) result_.lacking_memory.push_back(*std::move(fastest));
    }
    std::stable_sort(result_.lacking_memory.begin(), result_.lacking_memory.end(), IsFaster);
  }

  // Changes choices that lack memory until they fit. Where others fit, only the fastest few are worth it.
  void FitLacking() {
    PredictLacking();
    const bool some_fit = !result_.best.empty();
    for (size_t i = 0; i < result_.lacking_memory.size() && !Stopped(); ++i) {
      const PredictedChoice& lacking = result_.lacking_memory[i];
      const bool slower = some_fit && !IsFaster(lacking, result_.best[0]);
      if (slower || (!result_.best.empty() && i >= kImproved)) break;
      result_.stopped = some_fit && options_.stop_fitting();
      if (result_.stopped) break;
      Fit(lacking_[NameOf(lacking.choice)], some_fit);
    }
    if (!result_.best.empty() || result_.stopped) result_.enough = 0;
  }

  // Begins with the choice that needs least.
  void Fit(const std::vector<PlanChoice>& choices, bool some_fit) {
    const PredictWithin within = [this](const PlanChoice& choice, double memory) {
      return PredictIn(choice, memory);
    };
    const auto stop = [&] { return Stopped() || (some_fit && options_.stop_fitting()); };
    NeededMemory least = {{}, std::numeric_limits<double>::infinity()};
    for (const PlanChoice& choice : choices) {
      if (Stopped()) return;
      if (const auto bytes = BytesNeeded(choice, least.bytes, within, stop)) least = {choice, *bytes};
    }
    if (least.choice.stages() == 0) return;
    least = NeedLess(least, options_.activations, options_.memory, within, stop);
    auto prediction = Predict(least.choice);
    if (prediction.ok()) {
      result_.best.push_back({least.choice, *std::move(prediction)});
      Improve(&result_.best.back());
    } else if (result_.enough == 0 || least.bytes < result_.enough) {
      result_.enough = least.bytes;
    }
  }

  const FamilySearchOptions& options_;
  const PredictPlan& predict_;
  const int layers_;
  std::map<std::string, std::vector<PlanChoice>> lacking_;  // memory only, by name
  std::map<std::string, PredictedChoice> found_;            // the best by name
  bool lacks_memory_ = false;  // the last choice that was not taken needs more memory
  FamilySearchResult result_;
};

}  // namespace

absl::StatusOr<FamilySearchResult> SearchFamilies(const FamilySearchOptions& options,
                                                  const PredictPlan& predict) {
  return FamilySearch(options, predict).Run();
}

std::vector<int> CutByWork(const std::vector<double>& work, int stages) {
  std::vector<LayerCount> layers(work.size());
  for (size_t l = 0; l < work.size(); ++l) layers[l].forward_flops = work[l];
  return CutStages(layers, stages);
}

}  // namespace weft
