#include "schedules/families/candidates.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "schedules/families/families.h"

namespace weft {
namespace {

std::vector<int> Divisors(int n) {
  std::vector<int> divisors;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

bool Has(const Family& family, const char* parameter) {
  return std::any_of(family.parameters.begin(), family.parameters.end(),
                     [&](const FamilyParameter& p) { return p.name == parameter; });
}

bool DealsMicrobatches(const Family& family) {
  return std::any_of(family.parameters.begin(), family.parameters.end(),
                     [](const FamilyParameter& p) { return p.deals_microbatches; });
}

// Returns the plain form, and each word that a parameter of the placement takes beside its default; those
// that go with a cyclic rule only `with_rules`.
std::vector<Candidate> FormsOf(const Family& family, bool with_rules) {
  std::vector<Candidate> forms = {{family.name, {}}};
  for (const FamilyParameter& p : family.parameters) {
    if (!p.places_jobs || (p.needs_rule && !with_rules)) continue;
    for (size_t i = 1; i < p.values.size(); ++i) forms.push_back({family.name, {{p.name, p.values[i]}}});
  }
  return forms;
}

// The ways in which a family may come to be on so many ranks.
std::vector<Candidate> FormsOnRanks(const Family& family, int ranks) {
  std::vector<Candidate> forms;
  if (Has(family, "groups")) {
    for (int ring : Divisors(ranks)) {
      // A group alone is a pipeline, and rings of one rank are what deals micro-batches.
      if (ring == ranks || ring == 1) continue;
      forms.push_back({family.name, {{"groups", absl::StrCat(ranks / ring)}, {"ranks", absl::StrCat(ring)}}});
    }
  } else if (Has(family, "ranks")) {
    forms.push_back({family.name, {{"ranks", absl::StrCat(ranks)}}});
  } else {
    return FormsOf(family, /*with_rules=*/false);
  }
  return forms;
}

// Adds a family of rings in groups, with every number of groups and of ranks per group.
void AddGroups(const Family& family, int stages, int microbatches, std::vector<Candidate>* all) {
  for (const int groups : Divisors(microbatches)) {
    for (const int ranks : Divisors(stages)) {
      const bool other_name = groups == 1 || (ranks == 1 && groups == microbatches);
      if (other_name || 2 * int64_t{groups} * ranks > int64_t{stages} * microbatches) continue;
      Candidate plain = {family.name, {{"groups", absl::StrCat(groups)}, {"ranks", absl::StrCat(ranks)}}};
      all->push_back(plain);
      if (microbatches / groups <= stages || ranks == 1) continue;
      for (const auto& [parameter, value] : {std::pair("in_flight", "S"), std::pair("order", "1f1b")}) {
        Candidate bounded = plain;
        bounded.parameters[parameter] = value;
        all->push_back(std::move(bounded));
      }
    }
  }
}

// Visits each plain candidate that the sizes allow, with its schedule.
void VisitPlain(int stages, int microbatches,
                const std::function<void(const Candidate&, const Schedule&)>& visit) {
  const auto visit_if_made = [&](const Candidate& c) {
    auto schedule = MakeSchedule(c.name, c.parameters, stages, microbatches);
    if (schedule.ok() && ApplyRule(c.rule, c.name, &*schedule).ok()) visit(c, *schedule);
  };
  visit_if_made({"lpp", {{"groups", "1"}, {"ranks", "1"}}});
  for (const Family& family : Families()) {
    for (const Candidate& form : FormsOf(family, /*with_rules=*/true)) {
      visit_if_made(form);
      if (!family.takes_rules || stages == 1) continue;
      for (const std::string& rule : RuleNames()) {
        if (rule != Candidate().rule) visit_if_made({form.name, form.parameters, rule});
      }
    }
  }
}

}  // namespace

std::vector<Candidate> OldWeightCandidates(int stages, int microbatches) {
  std::vector<Candidate> all;
  VisitPlain(stages, microbatches, [&](const Candidate& c, const Schedule& schedule) {
    if (schedule.staleness) all.push_back(c);
  });
  return all;
}

std::vector<Candidate> DeeperCandidates(const Candidate& candidate, int microbatches) {
  std::vector<Candidate> deeper;
  if (candidate.rule != Candidate().rule) return deeper;
  if (candidate.name == "interleaved") {
    int ranks = 0;
    const bool plain = !candidate.parameters.contains("group");
    if (!plain || !absl::SimpleAtoi(candidate.parameters.at("ranks"), &ranks)) return deeper;
    for (const int group : {2 * ranks, 4 * ranks}) {
      if (group > microbatches) break;
      deeper.push_back(candidate);
      deeper.back().parameters["group"] = absl::StrCat(group);
    }
    return deeper;
  }
  const bool bounded =
      candidate.name == "1f1b" || candidate.name == "pipedream" || candidate.name == "pipedream_2bw";
  if (!bounded || !candidate.parameters.empty()) return deeper;
  // Allow one micro-batch more for each later stage, and two more.
  for (const char* in_flight : {"2*(S-s)-1", "3*(S-s)-2"}) {
    deeper.push_back(candidate);
    deeper.back().parameters["in_flight"] = in_flight;
  }
  return deeper;
}

SizedCandidate OnRanks(const Candidate& candidate, int ranks, int microbatches, int max_stages) {
  constexpr int kMultiples = 4;
  SizedCandidate sized = {candidate, 0, ""};
  int needed = 0;  // of stages or ranks, as told by what comes closest
  for (int stages = ranks; stages <= kMultiples * ranks; stages += ranks) {
    auto schedule = MakeSchedule(candidate.name, candidate.parameters, stages, microbatches);
    absl::Status made = schedule.status();
    if (made.ok()) made = ApplyRule(candidate.rule, candidate.name, &*schedule);
    if (!made.ok()) {
      if (sized.reason.empty()) sized.reason = std::string(made.message());
      continue;
    }
    if (schedule->ranks != ranks) {
      if (needed == 0) {
        needed = schedule->ranks;
        sized.reason = absl::StrCat("takes ", needed, " ranks for ", stages, " stages and ", microbatches,
                                    " micro-batches, not ", ranks);
      }
      continue;
    }
    if (stages > max_stages) {
      sized.reason = absl::StrCat("needs ", stages, " stages on ", ranks, " ranks; the model has ",
                                  max_stages, " layers");
      return sized;
    }
    return {candidate, stages, ""};
  }
  return sized;
}

std::vector<SizedCandidate> CandidatesOnRanks(int ranks, int microbatches, int max_stages) {
  std::vector<SizedCandidate> all;
  for (const Family& family : Families()) {
    if (family.reads_old_weights) continue;
    for (const Candidate& form : FormsOnRanks(family, ranks)) {
      all.push_back(OnRanks(form, ranks, microbatches, max_stages));
    }
  }
  return all;
}

std::vector<Candidate> Candidates(int stages, int microbatches) {
  std::vector<Candidate> all;
  for (const Family& family : Families()) {
    if (family.reads_old_weights) continue;
    if (Has(family, "groups")) {
      AddGroups(family, stages, microbatches, &all);
    } else if (DealsMicrobatches(family)) {
      all.push_back({family.name, {}});  // on fewer ranks it is a loop of one rank
    } else if (Has(family, "ranks")) {
      for (int ranks : Divisors(stages)) {
        if (ranks < stages) all.push_back({family.name, {{"ranks", absl::StrCat(ranks)}}});
      }
    } else {
      const std::vector<Candidate> forms = FormsOf(family, /*with_rules=*/false);
      all.insert(all.end(), forms.begin(), forms.end());
    }
  }
  return all;
}

std::vector<Candidate> PlainCandidates(int stages, int microbatches) {
  std::vector<Candidate> all;
  VisitPlain(stages, microbatches, [&](const Candidate& c, const Schedule&) { all.push_back(c); });
  return all;
}

}  // namespace weft
