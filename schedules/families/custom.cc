#include "schedules/families/custom.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedules/families/formula.h"
#include "schedules/families/tie_rule.h"
#include "schedules/nearest.h"
#include "schedules/sync/catalogue.h"

namespace weft {
namespace {

constexpr int kMaxFormulaRanks = 1'000'000;
constexpr int kMaxPeriod = 10'000;
constexpr int64_t kMaxSpan = int64_t{1} << 30;  // of priorities within a step
constexpr int kComputeKindCount = static_cast<int>(JobKind::kReduce);

absl::Status At(absl::string_view parameter, absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat("custom: ", parameter, ": ", message));
  status.SetPayload(kParameterPayload, absl::Cord(parameter));
  return status;
}

// The values of one formula, for every value of the variables that it uses.
class Table {
 public:
  int64_t At(const Job& job) const {
    return At(job.step, job.stage, job.microbatch, static_cast<int>(job.kind));
  }
  int64_t At(int t, int s, int b, int k) const {
    return values_[t % steps_ * step_ + s * stage_ + b * microbatch_ + k * kind_];
  }
  int64_t least() const { return *std::min_element(values_.begin(), values_.end()); }
  int64_t most() const { return *std::max_element(values_.begin(), values_.end()); }

 private:
  friend class Maker;
  std::vector<int64_t> values_;
  size_t step_ = 0, stage_ = 0, microbatch_ = 0, kind_ = 0;  // distances; 0 for a variable that is not used
  int steps_ = 1;
};

class Maker {
 public:
  Maker(const FamilyParameters& parameters, int stages, int microbatches)
      : parameters_(parameters), stages_(stages), microbatches_(microbatches) {}

  absl::StatusOr<Schedule> Make() {
    if (absl::Status s = ReadSizes(); !s.ok()) return s;
    if (absl::Status s = ReadConstants(); !s.ok()) return s;
    schedule_ = SizedSchedule("custom", stages_, microbatches_, ranks_);
    schedule_.split_backward = split_;
    schedule_.keeps_fetched = keeps_fetched_;
    for (const auto part : {&Maker::MakeRanks, &Maker::MakePriority, &Maker::MakeStaleness, &Maker::MakeLimit,
                            &Maker::ChooseSync}) {
      if (absl::Status s = (this->*part)(); !s.ok()) return s;
    }
    schedule_.period = period_;
    if (absl::Status s = CheckConstantsUsed(); !s.ok()) return s;
    return std::move(schedule_);
  }

 private:
  using Shared = std::shared_ptr<const Table>;

  bool Has(const std::string& name) const { return parameters_.contains(name); }
  absl::Status CheckConstantsUsed() const;
  absl::Status ReadSizes();
  absl::Status ReadConstants();
  absl::Status MakeRanks();
  absl::Status MakePriority();
  absl::Status CheckPriorities(const Table& values) const;
  absl::Status MakeStaleness();
  absl::Status MakeLimit();
  absl::Status ChooseSync();
  absl::StatusOr<Formula> Parse(const std::string& name, const std::vector<std::string>& variables) const;
  absl::StatusOr<Shared> Tabulate(const std::string& name, const Formula& formula, int steps) const;
  absl::StatusOr<Shared> RankTable(const std::string& name) const;

  const FamilyParameters& parameters_;
  const int stages_, microbatches_;
  int ranks_ = 0, period_ = 1;
  bool split_ = false, keeps_fetched_ = false;
  std::map<std::string, int64_t> constants_;
  Schedule schedule_;
};

// `workers` is what `ranks` was called.
bool IsParameter(absl::string_view name) {
  const auto& all = CustomFamily().parameters;
  return name == "workers" ||
         std::any_of(all.begin(), all.end(), [&](const FamilyParameter& p) { return p.name == name; });
}

// Returns the numbers of the names of kinds, which no constant may hide.
std::map<std::string, int64_t> KindNumbers() {
  std::map<std::string, int64_t> kinds;
  for (int k = 0; k < kJobKinds; ++k) kinds[std::string(JobKindName(static_cast<JobKind>(k)))] = k;
  return kinds;
}

absl::Status Maker::ReadSizes() {
  const auto whole = [&](const char* name, int most, int* value) {
    if (!Has(name)) return absl::OkStatus();
    if (absl::SimpleAtoi(parameters_.at(name), value) && *value >= 1 && *value <= most)
      return absl::OkStatus();
    return At(name, absl::StrFormat("'%s' is not a whole number from 1 to %d", parameters_.at(name), most));
  };
  if (Has("ranks") && Has("workers")) {
    return At("workers", "is the older name of `ranks`, which is given too; leave one out");
  }
  const char* const ranks = Has("workers") ? "workers" : "ranks";
  for (const char* needed : {ranks, "compute"}) {
    if (!Has(needed)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("custom needs `%s`, as in custom: {ranks: 4, compute: \"s %% W\"}", needed));
    }
  }
  if (absl::Status s = whole(ranks, kMaxFormulaRanks, &ranks_); !s.ok()) return s;
  if (absl::Status s = whole("period", kMaxPeriod, &period_); !s.ok()) return s;
  for (const auto& [name, flag] :
       {std::pair("split_backward", &split_), std::pair("keep_fetched", &keeps_fetched_)}) {
    if (!Has(name)) continue;
    const std::string& value = parameters_.at(name);
    if (value != "true" && value != "false") return At(name, "must be true or false");
    *flag = value == "true";
  }
  if (keeps_fetched_ && period_ > 1)
    return At("keep_fetched", "needs ranks that are the same in every step; leave `period` out");
  constexpr int64_t kMax = 4'000'000;
  if (int64_t{stages_} * microbatches_ * period_ <= kMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "custom: formulas are kept as tables, and %d stages of %d micro-batches over %d steps are more than %d "
      "values; use fewer micro-batches, or a family",
      stages_, microbatches_, period_, kMax));
}

absl::Status Maker::ReadConstants() {
  if (absl::Status s = CheckCustomParameters(parameters_); !s.ok()) return s;
  constants_ = KindNumbers();
  constants_["S"] = stages_;
  constants_["B"] = microbatches_;
  constants_["W"] = ranks_;
  for (const auto& [name, value] : parameters_) {
    int64_t number = 0;
    if (!IsParameter(name) && absl::SimpleAtoi(value, &number)) constants_[name] = number;
  }
  return absl::OkStatus();
}

// A parameter that is misspelt looks like a constant.
absl::Status Maker::CheckConstantsUsed() const {
  const std::vector<std::string> formulas = {"compute", "weights", "priority", "staleness", "limit"};
  for (const auto& [name, value] : parameters_) {
    if (IsParameter(name)) continue;
    const bool used =
        std::any_of(formulas.begin(), formulas.end(), [&, constant = &name](const auto& formula) {
          return Has(formula) && Formula::Names(parameters_.at(formula), *constant);
        });
    if (used) continue;
    std::vector<std::string> known;
    for (const FamilyParameter& p : CustomFamily().parameters) known.push_back(p.name);
    return At(name, absl::StrCat("is used by no formula", DidYouMean(name, known)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Formula> Maker::Parse(const std::string& name,
                                     const std::vector<std::string>& variables) const {
  auto formula = Formula::Parse(parameters_.at(name), variables, constants_);
  if (!formula.ok()) return At(name, formula.status().message());
  return formula;
}

// Formulas name the step, stage, micro-batch and kind, in this order.
const std::vector<std::string>& JobVariables() {
  static const auto* names = new std::vector<std::string>{"t", "s", "b", "k"};
  return *names;
}

absl::StatusOr<Maker::Shared> Maker::Tabulate(const std::string& name, const Formula& formula,
                                              int steps) const {
  auto table = std::make_shared<Table>();
  size_t size = 1;
  const auto lay = [&](const char* variable, int count, size_t* distance) {
    if (!formula.Uses(variable)) return 1;
    *distance = size;
    size *= count;
    return count;
  };
  const int kinds = lay("k", kComputeKindCount, &table->kind_);
  const int microbatches = lay("b", microbatches_, &table->microbatch_);
  const int stages = lay("s", stages_, &table->stage_);
  table->steps_ = lay("t", steps, &table->step_);
  table->values_.assign(size, 0);
  for (int t = 0; t < table->steps_; ++t) {
    for (int s = 0; s < stages; ++s) {
      for (int b = 0; b < microbatches; ++b) {
        for (int k = 0; k < kinds; ++k) {
          const auto kind = static_cast<JobKind>(k);
          const bool used = kind == JobKind::kForward || (kind != JobKind::kBackward) == split_;
          if (kinds > 1 && !used) continue;
          const int64_t values[] = {t, s, b, k};
          const auto value = formula.Evaluate(values);
          if (!value.ok()) {
            return At(name, absl::StrCat(value.status().message(), "; for ",
                                         Describe(Job::Compute(t, s, b, kind))));
          }
          table->values_[t * table->step_ + s * table->stage_ + b * table->microbatch_ + k * table->kind_] =
              *value;
        }
      }
    }
  }
  return Shared(std::move(table));
}

// Ranks, in range.
absl::StatusOr<Maker::Shared> Maker::RankTable(const std::string& name) const {
  const auto formula = Parse(name, JobVariables());
  if (!formula.ok()) return formula.status();
  if (formula->Uses("t") && !Has("period")) {
    return At(name,
              "uses t; say after how many steps the ranks are the same again, as in period: 4 (t then counts "
              "within the period)");
  }
  auto table = Tabulate(name, *formula, period_);
  if (!table.ok() || ((*table)->least() >= 0 && (*table)->most() < ranks_)) return table;
  for (int t = 0; t < period_; ++t) {
    for (int s = 0; s < stages_; ++s) {
      for (int b = 0; b < microbatches_; ++b) {
        for (int k = 0; k < kComputeKindCount; ++k) {
          const int64_t rank = (*table)->At(t, s, b, k);
          if (rank >= 0 && rank < ranks_) continue;
          return At(name, absl::StrFormat("is %d for %s; ranks are 0 to %d (ranks: %d)", rank,
                                          Describe(Job::Compute(t, s, b, static_cast<JobKind>(k))),
                                          ranks_ - 1, ranks_));
        }
      }
    }
  }
  return table;
}

absl::Status Maker::MakeRanks() {
  const auto compute = RankTable("compute");
  if (!compute.ok()) return compute.status();
  schedule_.compute =
      schedule_.weights = [table = *compute](const Job& j) { return static_cast<Rank>(table->At(j)); };
  if (!Has("weights")) return absl::OkStatus();
  const auto weights = RankTable("weights");
  if (!weights.ok()) return weights.status();
  schedule_.weights = [table = *weights](const Job& j) { return static_cast<Rank>(table->At(j)); };
  return absl::OkStatus();
}

// Jobs of a rank must differ, and what is said of two that do not are the user's own numbers.
absl::Status Maker::CheckPriorities(const Table& values) const {
  std::vector<std::tuple<Rank, int64_t, Job>> jobs;
  for (int s = 0; s < stages_; ++s) {
    for (int b = 0; b < microbatches_; ++b) {
      for (const JobKind kind :
           {JobKind::kForward, JobKind::kBackward, JobKind::kBackwardInput, JobKind::kBackwardWeight}) {
        if (kind != JobKind::kForward && (kind != JobKind::kBackward) != split_) continue;
        const Job job = Job::Compute(0, s, b, kind);
        jobs.emplace_back(schedule_.compute(job), values.At(job), job);
      }
    }
  }
  std::sort(jobs.begin(), jobs.end());
  for (size_t i = 1; i < jobs.size(); ++i) {
    const auto& [rank, priority, job] = jobs[i];
    const auto& [rank_before, priority_before, job_before] = jobs[i - 1];
    if (rank != rank_before || priority != priority_before) continue;
    return At(
        "priority",
        absl::StrFormat("%s and %s have the same priority %d on rank %d; priorities of a rank must differ",
                        Describe(job_before), Describe(job), priority, rank));
  }
  return absl::OkStatus();
}

// All jobs of a step before those of the next; the formula says how within a step.
absl::Status Maker::MakePriority() {
  schedule_.priority = PriorityByMicrobatch(stages_, microbatches_, /*forward_first=*/false);
  if (Has("order") && Has("priority")) return At("order", "says what `priority` says too; leave one out");
  if (Has("order")) return GiveOrder("", "custom", parameters_, &schedule_);
  if (!Has("priority")) return absl::OkStatus();
  const auto formula = Parse("priority", JobVariables());
  if (!formula.ok()) return formula.status();
  if (formula->Uses("t")) {
    return At("priority",
              "uses t; a rank takes the jobs of a step before those of the next in any case, so leave t out");
  }
  const auto table = Tabulate("priority", *formula, 1);
  if (!table.ok()) return table.status();
  const Table& values = **table;
  if (values.most() - values.least() >= kMaxSpan) {
    return At("priority",
              absl::StrFormat("goes from %d to %d; keep it within 2^30", values.least(), values.most()));
  }
  if (absl::Status differ = CheckPriorities(values); !differ.ok()) return differ;
  schedule_.priority = [table = *table, least = values.least(), span = values.most() - values.least() + 1](
                           const Job& j) { return j.step * span + (table->At(j) - least); };
  return absl::OkStatus();
}

absl::Status Maker::MakeStaleness() {
  if (!Has("staleness")) return absl::OkStatus();
  const auto formula = Parse("staleness", {"s", "b"});
  if (!formula.ok()) return formula.status();
  auto values = std::make_shared<std::vector<int>>();
  for (int s = 0; s < stages_; ++s) {
    for (int b = 0; b < microbatches_; ++b) {
      const auto value = formula->Evaluate({s, b});
      if (!value.ok()) {
        return At("staleness",
                  absl::StrFormat("%s; for stage %d, micro-batch %d", value.status().message(), s, b));
      }
      if (*value < 0 || *value > 10'000) {
        return At(
            "staleness",
            absl::StrFormat("is %d for stage %d, micro-batch %d; it must be from 0 to 10000", *value, s, b));
      }
      values->push_back(static_cast<int>(*value));
    }
  }
  if (std::all_of(values->begin(), values->end(), [](int v) { return v == 0; })) return absl::OkStatus();
  schedule_.staleness = [values = std::shared_ptr<const std::vector<int>>(values), m = microbatches_](
                            int s, int b) { return (*values)[static_cast<size_t>(s) * m + b]; };
  return absl::OkStatus();
}

absl::Status Maker::MakeLimit() {
  if (!Has("limit")) return absl::OkStatus();
  auto limit = NumbersOfPlaces(parameters_.at("limit"), constants_, stages_, ranks_);
  if (!limit.ok()) return At("limit", limit.status().message());
  schedule_.limit = *std::move(limit);
  return absl::OkStatus();
}

absl::Status Maker::ChooseSync() {
  if (!Has("sync")) return absl::OkStatus();
  auto sync = SyncOfName(parameters_.at("sync"), ranks_);
  if (!sync.ok()) return At("sync", sync.status().message());
  schedule_.sync = *std::move(sync);
  // The state is where it is needed.
  if (!IsMigrating(*schedule_.sync)) return absl::OkStatus();
  if (Has("weights")) return At("weights", "says nothing where the state of a stage migrates; leave it out");
  return absl::OkStatus();
}

}  // namespace

const Family& CustomFamily() {
  static const auto* family = new Family{
      "custom",
      "your own formulas over t, s, b, k, S, B, W and constants",
      {{"ranks", "their number, W in formulas"},
       {"compute", "formula of the rank that computes a job"},
       {"weights", "formula of the rank that holds the job's weights (default: compute)"},
       {"priority", "formula of the order of ready jobs, smaller first (default: backwards, then oldest)"},
       {"order",
        absl::StrCat("one of ", absl::StrJoin(OrdersFrom(kForwardsFirst), ", "), ", instead of a priority")},
       {"staleness", "formula over s and b: how many versions old the weights may be (default 0)"},
       {"limit",
        "formula over s and the rank w: most activations of a stage alive on a rank (default: none)"},
       {"sync",
        "how the holders of a stage come to the same weights: slices (default), relay, width (a slice of "
        "every "
        "stage on every rank), or migrating, which needs a cyclic rule"},
       {"keep_fetched",
        "true to keep fetched weights for the rank's later micro-batches on the stage (default false)"},
       {"split_backward", "true to split each backward into its halves (default false)"},
       {"period", "steps after which the ranks are the same again, where a formula uses t (default 1)"}}};
  return *family;
}

absl::Status CheckCustomParameters(const FamilyParameters& parameters) {
  std::vector<std::string> known;
  for (const FamilyParameter& p : CustomFamily().parameters) known.push_back(p.name);
  const std::map<std::string, int64_t> kinds = KindNumbers();
  constexpr std::array<absl::string_view, 8> kReserved = {"t", "s", "b", "k", "w", "S", "B", "W"};
  for (const auto& [name, value] : parameters) {
    if (IsParameter(name)) continue;
    int64_t number = 0;
    if (!absl::SimpleAtoi(value, &number)) {
      absl::Status status = absl::InvalidArgumentError(
          absl::StrFormat("custom has no parameter `%s`%s (a constant is a whole number; there are %s)", name,
                          DidYouMean(name, known), absl::StrJoin(known, ", ")));
      status.SetPayload(kParameterPayload, absl::Cord(name));
      return status;
    }
    const bool reserved = std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end();
    if (reserved || kinds.contains(name))
      return At(name, "is a word of the formulas; name the constant otherwise");
    if (!Formula::IsName(name)) {
      return At(name, "a constant's name has letters, digits and underscores and begins with a letter");
    }
    if (number <= -(int64_t{1} << 53) || number >= int64_t{1} << 53) {
      return At(name, "a constant must be below 2^53 in size");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> CustomSchedule(const FamilyParameters& parameters, int stages, int microbatches) {
  return Maker(parameters, stages, microbatches).Make();
}

}  // namespace weft
