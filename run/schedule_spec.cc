#include "run/schedule_spec.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "run/file_section.h"
#include "run/unknown_name.h"
#include "schedules/families/families.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr double kLongestStep = 1e9;  // seconds

// Returns the names of schedules. A run file, whose path names the key, may also have `auto`, which is
// planned before it comes here.
ChoiceNames ScheduleChoices(absl::string_view path) {
  ChoiceNames names = {"schedule", ScheduleNames(), {"rule", "reduction", "activations", "planned_step"}};
  if (!path.empty()) names.elsewhere = {"auto"};
  return names;
}

// Checks only the parameters' names; MakeSchedule checks their values, and how they fit the sizes.
void CheckParameters(const ScheduleSpec& schedule, absl::string_view path, absl::Status& status) {
  if (!status.ok()) return;
  const absl::Status names = CheckParameterNames(schedule.name, schedule.parameters);
  if (names.ok()) return;
  const std::string parameter(names.GetPayload(kParameterPayload).value_or(absl::Cord()));
  const std::string where = path.empty() ? "" : absl::StrCat(path, ".", parameter);
  const auto family = std::find_if(Families().begin(), Families().end(),
                                   [&](const Family& f) { return f.name == schedule.name; });
  if (family == Families().end()) {
    status = ErrorAt(where, names.message());
    return;
  }
  std::vector<std::string> known;
  for (const FamilyParameter& p : family->parameters) known.push_back(p.name);
  status = ErrorAt(where, UnknownName(absl::StrCat("parameter of ", family->name), parameter, known));
}

void CheckRule(absl::string_view rule, absl::string_view where, absl::Status& status) {
  if (!status.ok()) return;
  const std::vector<std::string> rules = RuleNames();
  if (std::find(rules.begin(), rules.end(), rule) != rules.end()) return;
  status = ErrorAt(where, UnknownName("rule", rule, rules));
}

void CheckReduction(absl::string_view reduction, absl::string_view where, absl::Status& status) {
  if (!status.ok() || reduction == "ordered" || reduction == "fast") return;
  status = ErrorAt(where, UnknownName("reduction", reduction, {"ordered", "fast"}));
}

void CheckActivations(absl::string_view activations, absl::string_view where, absl::Status& status) {
  for (const absl::string_view name : absl::StrSplit(activations, '/')) {
    if (!status.ok() || name == "retain" || name == "recompute" || name == "offload") continue;
    status = ErrorAt(where, UnknownName("activations", name, {"retain", "recompute", "offload"}));
  }
}

// Reads one name, or a list of one for each stage.
void ReadActivations(FileSection& section, std::string& activations) {
  const Json& value = section.At("activations");
  if (!section.ok() || !value.is_array()) return section.Read("activations", activations);
  std::vector<std::string> names;
  for (const Json& name : value) {
    if (!name.is_string() || name.get<std::string>().find('/') != std::string::npos)
      return section.Fail(
          "activations", "must be one of retain, recompute, offload, or a list of these, one for each stage");
    names.push_back(name.get<std::string>());
  }
  if (names.empty()) return section.Fail("activations", "is an empty list; give one for each stage");
  activations = absl::StrJoin(names, "/");
}

// Takes a parameter's value as text: a run file may have numbers, truth values and text.
void TakeParameter(const std::string& key, const Json& value, const std::string& path, ScheduleSpec& schedule,
                   absl::Status& status) {
  if (value.is_string()) {
    schedule.parameters[key] = value.get<std::string>();
  } else if (value.is_number() || value.is_boolean()) {
    schedule.parameters[key] = value.dump();
  } else {
    status = ErrorAt(absl::StrCat(path, ".", key),
                     absl::StrCat("must be a number or text, not ", TypeName(value)));
  }
}

// Refuses a rule in a schedule's place. `example` is a schedule that has the rule, as one writes it there.
void CheckNoRule(absl::string_view name, absl::string_view path, absl::string_view example,
                 absl::Status& status) {
  const std::vector<std::string> rules = RuleNames();
  if (!status.ok() || std::find(rules.begin(), rules.end(), name) == rules.end()) return;
  status = ErrorAt(path, absl::StrCat(name, " is a rule, not a schedule; write, for example, ", example));
}

// Splits `name[,key=value..]` without any check of names.
absl::StatusOr<ScheduleSpec> SplitScheduleText(absl::string_view text) {
  const std::vector<std::string> parts = SplitAtCommas(text);
  ScheduleSpec schedule;
  schedule.name = parts[0];
  if (schedule.name.empty()) return absl::InvalidArgumentError("names no schedule; write, for example, 1f1b");
  schedule.rule = DefaultRule(schedule.name);
  std::vector<std::string> given;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::vector<std::string> pair = absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    if (pair.size() != 2 || pair[0].empty() || pair[1].empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", parts[i].substr(0, 64), "\" is not of the form key=value, as in lpp,groups=2,ranks=4"));
    }
    std::string& value = pair[0] == "rule"          ? schedule.rule
                         : pair[0] == "reduction"   ? schedule.reduction
                         : pair[0] == "activations" ? schedule.activations
                                                    : schedule.parameters[pair[0]];
    if (std::find(given.begin(), given.end(), pair[0]) != given.end()) {
      return absl::InvalidArgumentError(absl::StrCat("gives ", pair[0], " twice"));
    }
    given.push_back(pair[0]);
    value = pair[1];
  }
  return schedule;
}

ScheduleSpec ReadScheduleText(absl::string_view text, absl::string_view path, absl::Status& status) {
  auto schedule = SplitScheduleText(text);
  if (!schedule.ok()) {
    status = ErrorAt(path, schedule.status().message());
    return {};
  }
  const std::string& name = schedule->name;
  CheckNoRule(name, path,
              path.empty() ? absl::StrCat("ddp,rule=", name) : absl::StrCat("{ddp: {}, rule: ", name, "}"),
              status);
  ReadChoice(Json(name), path, ScheduleChoices(path), status);
  CheckParameters(*schedule, path, status);
  CheckRule(schedule->rule, path, status);
  CheckReduction(schedule->reduction, path, status);
  CheckActivations(schedule->activations, path, status);
  return *schedule;
}

}  // namespace

ScheduleSpec ReadSchedule(const Json& value, absl::string_view path, absl::Status& status) {
  if (!status.ok()) return {};
  if (value.is_string()) return ReadScheduleText(value.get<std::string>(), path, status);
  for (const auto& item : value.items()) {
    CheckNoRule(item.key(), path, absl::StrCat("{ddp: {}, rule: ", item.key(), "}"), status);
  }
  const Choice choice = ReadChoice(value, path, ScheduleChoices(path), status);
  if (!status.ok()) return {};
  ScheduleSpec schedule;
  schedule.name = choice.name;
  schedule.rule = DefaultRule(choice.name);
  if (choice.name == "file" && choice.parameters.is_string()) {
    status =
        ErrorAt(choice.path,
                "names a file of actions; the reader of the run file replaces it by {path: .., actions: ..}");
    return {};
  }
  if (!choice.parameters.is_null() && !choice.parameters.is_object()) {
    status =
        ErrorAt(choice.path, absl::StrCat("the parameters of ", choice.name,
                                          " must be a section, as {}, not ", TypeName(choice.parameters)));
    return {};
  }
  for (const auto& item : choice.parameters.items()) {
    if (status.ok()) TakeParameter(item.key(), item.value(), choice.path, schedule, status);
  }
  FileSection section(value, std::string(path),
                      {choice.name, "rule", "reduction", "activations", "planned_step"}, status);
  section.Read("rule", schedule.rule);
  section.Read("reduction", schedule.reduction);
  ReadActivations(section, schedule.activations);
  section.Read("planned_step", schedule.planned_step, 0, kLongestStep);
  CheckParameters(schedule, choice.path, status);
  CheckRule(schedule.rule, section.PathOf("rule"), status);
  CheckReduction(schedule.reduction, section.PathOf("reduction"), status);
  CheckActivations(schedule.activations, section.PathOf("activations"), status);
  return schedule;
}

Json ToJson(const ScheduleSpec& schedule) {
  Json parameters = Json::object();
  for (const auto& [key, value] : schedule.parameters) parameters[key] = value;
  const std::vector<std::string> activations = SplitActivations(schedule);
  Json json = {{schedule.name, parameters},
               {"rule", schedule.rule},
               {"reduction", schedule.reduction},
               {"activations", activations.size() == 1 ? Json(schedule.activations) : Json(activations)}};
  if (schedule.planned_step > 0) json["planned_step"] = schedule.planned_step;
  return json;
}

std::vector<std::string> SplitAtCommas(absl::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ',' && depth <= 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::vector<std::string> SplitActivations(const ScheduleSpec& schedule) {
  return absl::StrSplit(schedule.activations, '/');
}

absl::Status CheckActivationsOfStages(const ScheduleSpec& schedule, int stages) {
  const size_t given = SplitActivations(schedule).size();
  if (given == 1 || given == static_cast<size_t>(stages)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("lists ", given, " for ", stages,
                                                 stages == 1 ? " stage" : " stages",
                                                 "; give one for each stage, or one for all"));
}

absl::StatusOr<ScheduleSpec> ParseScheduleText(absl::string_view text) {
  absl::Status status;
  ScheduleSpec schedule = ReadScheduleText(text, "", status);
  if (!status.ok()) return status;
  return schedule;
}

std::string ToText(const ScheduleSpec& schedule) {
  std::string text = schedule.name;
  for (const auto& [key, value] : schedule.parameters) {
    // The rows of a file are not for people; its path says enough.
    if (schedule.name != "file" || key != "actions") absl::StrAppend(&text, ",", key, "=", value);
  }
  if (schedule.rule != DefaultRule(schedule.name)) absl::StrAppend(&text, ",rule=", schedule.rule);
  if (schedule.reduction != "ordered") absl::StrAppend(&text, ",reduction=", schedule.reduction);
  if (schedule.activations != "retain") absl::StrAppend(&text, ",activations=", schedule.activations);
  return text;
}

}  // namespace weft
