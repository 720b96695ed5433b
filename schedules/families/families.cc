#include "schedules/families/families.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedules/families/custom.h"
#include "schedules/families/cyclic.h"
#include "schedules/families/family.h"
#include "schedules/graph/size.h"
#include "schedules/nearest.h"
#include "schedules/run_terms.h"
#include "schedules/simulator/actions.h"
#include "schedules/sync/protocol.h"

namespace weft {
namespace {

using Parameters = FamilyParameters;

// Returns the families by name, as people look for them.
const std::vector<FamilyEntry>& Catalogue() {
  static const auto* entries = [] {
    auto* all = new std::vector<FamilyEntry>;
    for (const auto& group : {DataParallelFamilies(), PipelineFamilies(), LoopedFamilies(),
                              InterleavedFamilies(), ZeroBubbleFamilies(), ControllableMemoryFamilies(),
                              BidirectionalFamilies(), PyramidFamilies(), PeriodicFamilies()}) {
      all->insert(all->end(), group.begin(), group.end());
    }
    std::sort(all->begin(), all->end(),
              [](const FamilyEntry& a, const FamilyEntry& b) { return a.family.name < b.family.name; });
    return all;
  }();
  return *entries;
}

absl::Status CheckNames(const Family& family, const Parameters& parameters) {
  std::vector<std::string> known;
  for (const FamilyParameter& p : family.parameters) known.push_back(p.name);
  for (const auto& [key, value] : parameters) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    absl::Status status = absl::InvalidArgumentError(
        known.empty() ? absl::StrFormat("%s has no parameters; remove `%s`", family.name, key)
                      : absl::StrFormat("%s has no parameter `%s`%s (it has %s)", family.name, key,
                                        DidYouMean(key, known), absl::StrJoin(known, ", ")));
    status.SetPayload(kParameterPayload, absl::Cord(key));
    return status;
  }
  return absl::OkStatus();
}

const Family& FileFamily() {
  static const auto* family =
      new Family{"file",
                 "the rows of actions of a file",
                 {{"path", "the file, one row a rank"}, {"actions", "what the file holds"}}};
  return *family;
}

absl::StatusOr<Schedule> FileSchedule(const Parameters& parameters, int stages, int microbatches) {
  const auto actions = parameters.find("actions");
  if (actions == parameters.end()) {
    return absl::InvalidArgumentError("file needs the rows of actions of a file, as in file: mine.csv");
  }
  const auto path = parameters.find("path");
  const std::string name = path == parameters.end() ? "file" : path->second;
  auto schedule = ScheduleFromActions(actions->second);
  if (!schedule.ok())
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", schedule.status().message()));
  if (schedule->stages != stages || schedule->microbatches != microbatches) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has the actions of %d stages and %d micro-batches, not of %d and %d", name,
                        schedule->stages, schedule->microbatches, stages, microbatches));
  }
  schedule->name = name;
  return schedule;
}

const FamilyEntry* FindEntry(absl::string_view name) {
  for (const FamilyEntry& e : Catalogue()) {
    if (e.family.name == name) return &e;
  }
  return nullptr;
}

absl::Status UnknownSchedule(absl::string_view name) {
  const std::vector<std::string> names = ScheduleNames();
  return absl::NotFoundError(absl::StrFormat("no schedule is called '%s'%s (there are %s)", name,
                                             DidYouMean(name, names), absl::StrJoin(names, ", ")));
}

}  // namespace

const std::vector<Family>& Families() {
  static const auto* families = [] {
    auto* all = new std::vector<Family>;
    for (const FamilyEntry& e : Catalogue()) all->push_back(e.family);
    return all;
  }();
  return *families;
}

std::vector<std::string> ScheduleNames() {
  std::vector<std::string> names;
  for (const FamilyEntry& e : Catalogue()) names.push_back(e.family.name);
  names.insert(names.end(), {"custom", "file"});
  return names;
}

absl::Status CheckParameterNames(absl::string_view name, const Parameters& parameters) {
  if (name == "custom") return CheckCustomParameters(parameters);
  if (name == "file") return CheckNames(FileFamily(), parameters);
  const FamilyEntry* entry = FindEntry(name);
  return entry != nullptr ? CheckNames(entry->family, parameters) : UnknownSchedule(name);
}

absl::StatusOr<Schedule> MakeSchedule(absl::string_view name, const Parameters& parameters, int stages,
                                      int microbatches) {
  constexpr int kMax = 1'000'000;
  if (stages < 1 || stages > kMax || microbatches < 1 || microbatches > kMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "stages (%d) and micro-batches (%d) must be from 1 to %d", stages, microbatches, kMax));
  }
  if (absl::Status s = CheckSize(stages, microbatches); !s.ok()) return s;
  if (absl::Status s = CheckParameterNames(name, parameters); !s.ok()) return s;
  if (name == "custom") return CustomSchedule(parameters, stages, microbatches);
  if (name == "file") return FileSchedule(parameters, stages, microbatches);
  return FindEntry(name)->make(parameters, stages, microbatches);
}

std::vector<std::string> RuleNames() { return {"sync", "cdp_v1", "cdp_v2"}; }

std::string DefaultRule(absl::string_view name) {
  const FamilyEntry* entry = FindEntry(name);
  return entry != nullptr ? entry->family.default_rule : "sync";
}

std::vector<std::string> RuleTakers() {
  std::vector<std::string> takers;
  for (const Family& family : Families()) {
    if (family.takes_rules) takers.push_back(family.name);
  }
  return takers;
}

absl::Status ApplyRule(absl::string_view rule, absl::string_view name, Schedule* schedule) {
  // The terms of a run are not there yet; CheckSchedule sees them with the scheme.
  if (rule == "sync") return schedule->sync->Check(RunSchedule(*schedule, RunTerms()));
  if (!IsCyclicRule(rule)) {
    return absl::InvalidArgumentError(absl::StrFormat("no rule is called '%s'%s (there are %s)", rule,
                                                      DidYouMean(rule, RuleNames()),
                                                      absl::StrJoin(RuleNames(), ", ")));
  }
  const FamilyEntry* entry = FindEntry(name);
  if (name == "custom" && schedule->staleness) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "custom: rule=%s says which versions micro-batches read; leave `staleness` out", rule));
  }
  if (name == "custom" || (entry != nullptr && entry->family.takes_rules))
    return ApplyCyclicRule(rule, schedule);
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has an order of its own, which the cyclic one of rule=%s would contradict; the "
                      "rule is for %s",
                      name, rule, absl::StrJoin(RuleTakers(), ", ")));
}

}  // namespace weft
