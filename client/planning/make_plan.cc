#include "client/planning/make_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/monotonic_clock.h"
#include "client/planning/family_search.h"
#include "client/planning/order_search.h"
#include "run/unknown_name.h"
#include "schedules/byte_text.h"
#include "schedules/families/families.h"

namespace weft {
namespace {

constexpr int kMaxBatches = 16;
constexpr int kMaxTasks = 512;          // layers of all micro-batches of a window
constexpr int kOthers = 5;              // of the schedules that were not chosen
constexpr int kOrdered = 3;             // pipelines whose jobs are ordered
constexpr double kMoreMemory = 1.0625;  // times as much, where a search with less finds nothing

bool KnowsPatterns(const PlanSource& source, int batches) { return source.layers() * batches <= kMaxTasks; }

// Plans one run or profile, and keeps the best.
class PlanMaker {
 public:
  PlanMaker(const PlanSource& source, const WantedPlan& wanted, const PlanLimits& limits)
      : source_(source),
        wanted_(wanted),
        limits_(limits),
        predict_(PredictorOf(source)),
        predict_within_(PredictorWithinOf(source)),
        begin_(MonotonicNow()),
        families_((wanted.families || wanted.orders) && source.microbatches > 0) {}

  absl::StatusOr<PlanReport> Make() {
    if (absl::Status sound = source_.CheckRanksOfNetwork(limits_.ranks); !sound.ok()) return sound;
    const auto baseline = ChainOf(source_.ChainOf(source_.profile), limits_.ranks, 0, Network());
    if (!baseline.ok()) return baseline.status();
    if (absl::Status searched = Search(); !searched.ok()) return searched;
    if (!report_.has_value()) return NothingFits(*baseline);
    report_->source = source_.options.file;
    report_->profile = source_.options.profile.empty() ? source_.options.file : source_.options.profile;
    report_->profile_hash = source_.profile_hash;
    report_->of_run = source_.run.has_value();
    if (report_->of_run) {
      report_->buffers = source_.run->buffers;
      report_->weight_bytes = WeightBytesOf(*source_.run);
    }
    report_->unit = source_.run.has_value() ? source_.costs->UnitOf() : source_.profile.unit;
    report_->ranks = static_cast<int>(report_->peak_bytes.size());  // a plan may leave ranks empty
    report_->stopped = stopped_;
    report_->pipedream = *FindContiguousPlan(baseline->chain, /*replicated=*/true);
    report_->pipedream_period = baseline->TimeOf(report_->pipedream.period);
    NameLayersOfModel(&*report_);
    report_->memory = source_.memory;
    auto placement =
        source_.run.has_value()
            ? PlacementOfRun(*source_.run, report_->choice, report_->held_bytes, report_->peak_bytes)
            : PlacementOfProfile(source_.profile, report_->choice, report_->microbatches == 0,
                                 report_->held_bytes, report_->peak_bytes);
    if (!placement.ok()) return placement.status();
    report_->placement = *std::move(placement);
    return *std::move(report_);
  }

 private:
  absl::Status Search() {
    if (absl::Status searched = SearchPatterns(); !searched.ok()) return searched;
    return families_ ? SearchAllFamilies() : absl::OkStatus();
  }

  // Gives the cuts as run files have them.
  void NameLayersOfModel(PlanReport* report) const {
    report->choice.layers_of_stage = source_.CutOfLayers(report->choice.layers_of_stage);
    for (PredictedChoice& other : report->others)
      other.choice.layers_of_stage = source_.CutOfLayers(other.choice.layers_of_stage);
  }

  const NetworkSpec* Network() const { return source_.network.has_value() ? &*source_.network : nullptr; }

  // Returns what stops a search after a part of the time.
  std::function<bool()> StopAfter(double part) const {
    const int64_t end = begin_ + static_cast<int64_t>(part * limits_.seconds * 1e9);
    return [end] { return MonotonicNow() >= end; };
  }

  // Each policy for activations and each window has its share of the time; patterns have half of it where
  // there are families.
  absl::Status SearchPatterns() {
    const std::vector<std::string> policies = source_.Policies();
    const double all = families_ ? 0.5 : 1;
    const auto count = static_cast<double>(policies.size() * wanted_.batches.size());
    double done = 0;
    for (const std::string& policy : policies) {
      for (const int batches : wanted_.batches) {
        const double from = all * done / count, to = all * ++done / count;
        if (!KnowsPatterns(source_, batches)) continue;
        if (absl::Status searched = SearchPattern(policy, batches, from, to); !searched.ok()) return searched;
      }
    }
    return absl::OkStatus();
  }

  // Plans, predicts, and plans anew with less memory where the prediction counts more than the planner.
  absl::Status SearchPattern(const std::string& policy, int batches, double from, double to) {
    constexpr double kLeastRoom = 0.94, kMostRoom = 0.99;  // times as much, in each round
    double room = source_.memory, part = from;
    const Profile profile = source_.ChainOf(source_.ProfileUnder(policy));
    const auto over = StopAfter(to);
    for (bool first = true; first || (room >= 1 && !over()); first = false) {
      const auto ticked = ChainOf(profile, limits_.ranks, room, Network());
      if (!ticked.ok()) return ticked.status();
      PlacementSearchOptions options;
      options.batches = batches;
      options.contiguous = wanted_.contiguous;
      const double begun = part;
      part = source_.run.has_value() && source_.memory > 0 ? (part + to) / 2 : to;
      options.limits.stop = StopAfter(part);
      options.stop_single = StopAfter((begun + part) / 2);
      std::optional<Plan> plan = FindPlan(ticked->chain, options);
      stopped_ = stopped_ || options.limits.stop();
      if (!plan.has_value()) return absl::OkStatus();
      if (HasCappedTransfer(ticked->chain, *plan)) {
        links_too_slow_ = true;
        return absl::OkStatus();
      }
      PlanReport found = ReportOf(*std::move(plan), policy, ticked->ticks_per_unit);
      if (found.microbatches == 0) {
        Offer(std::move(found));
        return absl::OkStatus();
      }
      // A pattern bounds its activations by its order, so it runs to its end without a budget, too.
      const auto prediction = predict_within_(found.choice, 0);
      if (!prediction.ok()) return prediction.status();
      const double most = *std::max_element(prediction->peak_bytes.begin(), prediction->peak_bytes.end());
      if (source_.memory > 0 && most > source_.memory) {
        // A plan of other stages may need less, so no round gives up much of the room.
        room = std::clamp(room - (most - source_.memory), kLeastRoom * room, kMostRoom * room);
        continue;
      }
      TakePrediction(*prediction, &found);
      Offer(std::move(found));
      return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  PlanReport ReportOf(Plan plan, const std::string& policy, double ticks_per_unit) const {
    PlanReport report;
    report.choice.schedule = ScheduleOfPlan(plan);
    report.choice.schedule.activations = policy;
    if (source_.run.has_value()) report.choice.schedule.reduction = source_.run->schedule.reduction;
    report.choice.layers_of_stage = plan.stage_layers;
    report.choice.microbatches = std::max(1, source_.microbatches);
    report.microbatches = source_.microbatches;
    report.ticks_per_unit = ticks_per_unit;
    report.step = static_cast<double>(plan.pattern.period) / ticks_per_unit;
    // The ranks behind the last one with a stage are empty.
    const int ranks = *std::max_element(plan.rank_of_stage.begin(), plan.rank_of_stage.end()) + 1;
    report.peak_bytes.assign(plan.peak_bytes.begin(), plan.peak_bytes.begin() + ranks);
    const std::vector<int64_t>& resident = plan.placed.problem.resident;
    report.held_bytes.assign(resident.begin(), resident.begin() + ranks);
    report.pattern = std::move(plan);
    return report;
  }

  void TakePrediction(const PlanPrediction& prediction, PlanReport* report) const {
    report->step = prediction.step;
    report->held_bytes = prediction.held_bytes;
    report->peak_bytes = prediction.peak_bytes;
    // Pairs that nobody has measured may be predicted to take less than their work.
    if (prediction.guesses_pairs) return;
    report->step_bound = LeastStep(source_, limits_.ranks, report->microbatches,
                                   /*steps_overlap=*/prediction.staleness > 0);
  }

  // Compares windows of one size with each other, and steps with steps.
  static double TimeOf(const PlanReport& report) {
    return report.microbatches > 0 ? report.step : report.step / report.pattern->batches;
  }

  // Keeps the better of the report and the best so far; the other is named beside it.
  void Offer(PlanReport found) {
    if (!report_.has_value()) {
      report_ = std::move(found);
      return;
    }
    if (TimeOf(found) < TimeOf(*report_) * kBetter) std::swap(*report_, found);
    if (found.microbatches == 0) return;
    PlanPrediction prediction;
    prediction.step = found.step;
    report_->others.insert(report_->others.end(), found.others.begin(), found.others.end());
    report_->others.push_back({found.choice, std::move(prediction)});
    std::stable_sort(report_->others.begin(), report_->others.end(),
                     [](const auto& a, const auto& b) { return a.prediction.step < b.prediction.step; });
    if (report_->others.size() > kOthers) report_->others.resize(kOthers);
  }

  std::vector<int> MicrobatchesToTry() const {
    const int own = source_.microbatches;
    std::vector<int> all = {own};
    if (!limits_.vary_microbatches || !source_.run.has_value()) return all;
    for (int count = (own + 3) / 4; count <= 4 * own; ++count) {
      if (count != own && source_.run->train.batch % count == 0) all.push_back(count);
    }
    return all;
  }

  static bool HasNone(const FamilySearchResult& found) {
    return found.best.empty() && found.lacking_memory.empty();
  }

  absl::Status SearchAllFamilies() {
    FamilySearchOptions options;
    options.ranks = limits_.ranks;
    for (const ProfilePart& part : source_.ChainOf(source_.profile).parts)
      options.work.push_back(part.forward + part.backward);
    options.microbatches = MicrobatchesToTry();
    options.activations = source_.Policies();
    if (source_.run.has_value()) options.reduction = source_.run->schedule.reduction;
    options.schedule = wanted_.family;
    options.slow_links = source_.slow_links();
    if (source_.network.has_value())
      options.speeds = source_.network->network.FirstRanks(limits_.ranks).speeds;
    options.predict_within = predict_within_;
    options.memory = source_.memory;
    options.stop = StopAfter(1);
    options.stop_fitting = StopAfter(0.75);
    auto found = SearchFamilies(options, predict_);
    // A family may take fewer ranks where none takes all.
    const bool may_leave = wanted_.families && wanted_.family.empty() && options.speeds.empty();
    while (may_leave && found.ok() && HasNone(*found) && !found->stopped && --options.ranks > 0)
      found = SearchFamilies(options, predict_);
    if (!found.ok()) return found.status();
    stopped_ = stopped_ || found->stopped;
    enough_ = found->enough;
    reason_ = found->reason;
    // A family comes first: it is kept where an order is no faster.
    for (size_t i = 0; wanted_.families && i < found->best.size() && i <= kOthers; ++i)
      Offer(ReportOf(found->best[i]));
    std::vector<PredictedChoice> pipelines = std::move(found->best);
    pipelines.insert(pipelines.end(), found->lacking_memory.begin(), found->lacking_memory.end());
    const bool ordered = wanted_.orders && SearchOrders(pipelines);
    return ordered || wanted_.families || stopped_ ? absl::OkStatus() : NoPipeline();
  }

  // Orders the jobs of the first pipelines, and offers the best order. Returns false if there is no pipeline.
  bool SearchOrders(const std::vector<PredictedChoice>& found) {
    const OrderSearchOptions options = {source_.memory, StopAfter(1)};
    const StageCosts costs = [this](const PlanChoice& choice) { return CostsOf(source_, choice); };
    std::optional<PredictedChoice> best;
    int pipelines = 0;
    for (const PredictedChoice& choice : found) {
      if (pipelines == kOrdered || !IsPipeline(choice)) continue;
      ++pipelines;
      auto ordered = SearchOrder(choice, costs, predict_, options);
      if (ordered.has_value() && (!best.has_value() || ordered->prediction.step < best->prediction.step))
        best = std::move(ordered);
    }
    stopped_ = stopped_ || options.stop();
    if (best.has_value()) Offer(ReportOf(*best));
    return pipelines > 0;
  }

  PlanReport ReportOf(const PredictedChoice& found) const {
    PlanReport report;
    report.choice = found.choice;
    report.microbatches = report.choice.microbatches;
    TakePrediction(found.prediction, &report);
    return report;
  }

  absl::Status LinksTooSlow() const {
    return absl::OutOfRangeError(absl::StrCat(
        "the links are so slow beside the layers of ", source_.options.file,
        " that the period of a pattern is not known; give more --bandwidth, more memory, or a family with "
        "--schedule"));
  }

  static absl::Status TimeIsOver() {
    return absl::DeadlineExceededError(
        "the time for the search was over before a plan was found; give more with --time-limit");
  }

  absl::Status NoPipeline() const {
    return absl::OutOfRangeError(
        absl::StrFormat("--schedule: an order is of a pipeline with one stage on each rank; %d ranks and the "
                        "%d layers of %s have none",
                        limits_.ranks, source_.layers(), source_.options.file));
  }

  absl::Status NothingFits(const TickedChain& unlimited) const {
    if (links_too_slow_) return LinksTooSlow();
    if (source_.memory == 0 && stopped_) return TimeIsOver();
    if (source_.memory == 0 && !reason_.ok()) return absl::InvalidArgumentError(reason_.message());
    const std::string what =
        absl::StrFormat("nothing fits %s on each of %d ranks", FormatBytes(source_.memory), limits_.ranks);
    const std::optional<double> enough = EnoughMemory(unlimited.chain);
    if (!enough.has_value() && stopped_) return TimeIsOver();
    if (enough.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("%s; %s (%.0f bytes) would do", what, FormatBytes(*enough), *enough));
    }
    const std::string why = reason_.ok() ? "give more memory" : std::string(reason_.message());
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", why));
  }

  // Returns bytes of each rank with which this search finds a plan. Families say so; for patterns and orders
  // it is asked with more and more memory. Returns nothing where the time does not suffice.
  std::optional<double> EnoughMemory(const PlannedChain& chain) const {
    std::optional<double> enough;
    if (wanted_.families && enough_ > 0) enough = enough_;
    const auto stop = StopAfter(1);
    if (stop()) return enough;
    double asked = std::max(source_.memory + 1, std::ceil(enough_ / 2));
    if (!wanted_.batches.empty()) asked = std::max(source_.memory + 1, LeastOfPatterns(chain));
    for (; !stop() && asked < enough.value_or(kUnlimitedBytes); asked = std::ceil(asked * kMoreMemory)) {
      if (FindsOtherPlan(asked)) return asked;
    }
    return enough;
  }

  // Returns a memory below which the planner finds no pattern of layers that retain.
  double LeastOfPatterns(const PlannedChain& chain) const {
    PlacementSearchOptions options;
    options.contiguous = wanted_.contiguous;
    options.listed = 20'000;
    options.limits.stop = StopAfter(1);
    return static_cast<double>(LeastMemoryThatFits(chain, options));
  }

  // Returns true if there is a plan with so much memory, of patterns or, without families, of orders.
  bool FindsOtherPlan(double memory) const {
    const PlanSource source = source_.WithMemory(memory);
    WantedPlan others = wanted_;
    others.families = false;
    others.orders = wanted_.orders && !wanted_.families;
    PlanLimits left = limits_;
    left.seconds -= static_cast<double>(MonotonicNow() - begin_) / 1e9;
    PlanMaker maker(source, others, left);
    return maker.Search().ok() && maker.report_.has_value();
  }

  const PlanSource& source_;
  const WantedPlan& wanted_;
  const PlanLimits& limits_;
  const PredictPlan predict_;
  const PredictWithin predict_within_;
  const int64_t begin_;
  const bool families_;
  bool stopped_ = false;
  bool links_too_slow_ = false;       // for a pattern that was found, so that its period is not known
  std::optional<PlanReport> report_;  // the best so far
  double enough_ = 0;                 // bytes of each rank with which a family fits; 0 where not known
  absl::Status reason_;
};

}  // namespace

absl::StatusOr<WantedPlan> ParseWantedPlan(const std::string& text) {
  if (text == "auto") return WantedPlan{.batches = {1, 2}, .families = true, .orders = true};
  if (text == "order") return WantedPlan{.orders = true};
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  if (parts[0] == "auto" || parts[0] == "order") {
    return absl::InvalidArgumentError(
        absl::StrCat("--schedule: ", parts[0], " has no parameters; leave out '",
                     text.substr(parts[0].size()), "', and set activations and reduction in the run file"));
  }
  std::vector<std::string> names = ScheduleNames();
  if (std::find(names.begin(), names.end(), parts[0]) == names.end()) {
    names.insert(names.begin(), {"auto", "order"});
    return absl::InvalidArgumentError(absl::StrCat("--schedule: ", UnknownName("schedule", parts[0], names)));
  }
  if (parts[0] != "periodic") {
    const auto family = ParseScheduleText(text);
    if (family.ok()) return WantedPlan{.families = true, .family = text};
    return absl::InvalidArgumentError(absl::StrCat("--schedule: ", family.status().message()));
  }
  WantedPlan wanted{.batches = {1}};
  bool known = true;
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i] == "contiguous") {
      wanted.contiguous = true;
    } else {
      known = known && absl::StartsWith(parts[i], "k=") &&
              absl::SimpleAtoi(parts[i].substr(2), &wanted.batches[0]) && wanted.batches[0] >= 1 &&
              wanted.batches[0] <= kMaxBatches;
    }
  }
  if (known) return wanted;
  return absl::InvalidArgumentError(absl::StrFormat(
      "--schedule: '%s' is not of the form periodic[,k=1..%d][,contiguous]", text, kMaxBatches));
}

absl::StatusOr<PlanReport> MakePlan(const PlanSource& source, const WantedPlan& wanted,
                                    const PlanLimits& limits) {
  const int most = wanted.batches.empty() ? 0 : wanted.batches.back();
  if (!KnowsPatterns(source, most) && (!wanted.families || source.microbatches == 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has %d layers in a window, and at most %d can be planned; profile larger layers, or give "
        "--schedule periodic",
        source.options.file, source.layers() * most, kMaxTasks));
  }
  if (wanted.batches.empty() && source.microbatches == 0) {
    return absl::OutOfRangeError(absl::StrCat("how long a step of ",
                                              wanted.orders ? "an order" : wanted.family,
                                              " takes depends on its micro-batches; give their "
                                              "number with --microbatches"));
  }
  return PlanMaker(source, wanted, limits).Make();
}

}  // namespace weft
