#include "tests/golden/transcript_driver.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "schedules/families/families.h"
#include "tests/golden/transcript_words.h"

namespace weft {
namespace {

constexpr char kTranscriptRunId[] = "1234";

int64_t NumberOf(const TranscriptCommand& c, const std::string& key, int64_t otherwise) {
  int64_t number = otherwise;
  return absl::SimpleAtoi(c.Value(key), &number) ? number : otherwise;
}

std::optional<double> LossOf(const TranscriptCommand& c) {
  double loss = 0;
  return absl::SimpleAtod(c.Value("loss"), &loss) ? std::optional<double>(loss) : std::nullopt;
}

// Reads "250ms" or "10s".
absl::StatusOr<int64_t> ParseDuration(absl::string_view text) {
  absl::string_view digits = text;
  const int64_t unit = absl::ConsumeSuffix(&digits, "ms") ? 1'000'000 : 1'000'000'000;
  absl::ConsumeSuffix(&digits, "s");
  int64_t number = 0;
  if (!absl::SimpleAtoi(digits, &number))
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no time; write 250ms or 10s"));
  return number * unit;
}

absl::Status ReadDurations(const TranscriptCommand& c, const std::map<std::string, int64_t*>& options) {
  for (const auto& [key, text] : c.values) {
    const auto option = options.find(key);
    if (option == options.end()) return absl::InvalidArgumentError(absl::StrCat("no option ", key));
    const absl::StatusOr<int64_t> ns = ParseDuration(text);
    if (!ns.ok()) return ns.status();
    *option->second = *ns;
  }
  return absl::OkStatus();
}

absl::StatusOr<RunSchedule> ScheduleOf(const TranscriptCommand& c) {
  std::map<std::string, std::string> parameters;
  for (absl::string_view part : absl::StrSplit(c.Value("parameters"), ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parameter = absl::StrSplit(part, absl::MaxSplits('=', 1));
    parameters.insert(parameter);
  }
  const std::string family = c.Value("schedule", "gpipe");
  absl::StatusOr<Schedule> schedule =
      MakeSchedule(family, parameters, static_cast<int>(NumberOf(c, "stages", 1)),
                   static_cast<int>(NumberOf(c, "microbatches", 1)));
  if (!schedule.ok()) return schedule.status();
  RunTerms terms;
  terms.takes_norm = c.Value("clips") == "yes";
  if (absl::Status s = ApplyRule(c.Value("rule", "sync"), family, &*schedule); !s.ok()) return s;
  return RunSchedule(*std::move(schedule), std::move(terms));
}

// The jobs of a `jobs` key, or of another one: "forward t0 s0 b0, update t0 s0".
absl::StatusOr<std::vector<Job>> JobsOf(const TranscriptCommand& c, const std::string& key = "jobs") {
  std::vector<Job> jobs;
  for (absl::string_view words : absl::StrSplit(c.Value(key), ',')) {
    const absl::StatusOr<Job> job = ParseJobWords(words);
    if (!job.ok()) return job.status();
    jobs.push_back(*job);
  }
  return jobs;
}

Failed FailureOf(const TranscriptCommand& c, uint64_t run) {
  Failed failure{run, c.Value("reason")};
  failure.damaged_checkpoint = static_cast<int32_t>(NumberOf(c, "damaged_checkpoint", -1));
  failure.non_finite_step = static_cast<int32_t>(NumberOf(c, "non_finite_step", -1));
  failure.device_lost = NumberOf(c, "device_lost", 0) != 0;
  return failure;
}

// A report, of jobs or collectives of the rank that run if there are any: jobs=(..) or collectives=(..),
// age=10s.
absl::StatusOr<FromWorker> ReportOf(const TranscriptCommand& c, uint64_t run, Rank rank) {
  Report report{run, {}, {}};
  const bool collectives = c.values.count("collectives") != 0;
  if (c.values.count("jobs") == 0 && !collectives) return report;
  const absl::StatusOr<std::vector<Job>> jobs = JobsOf(c, collectives ? "collectives" : "jobs");
  if (!jobs.ok()) return jobs.status();
  const absl::StatusOr<int64_t> age = ParseDuration(c.Value("age"));
  if (!age.ok()) return age.status();
  for (const Job& job : *jobs) {
    if (collectives) {
      report.joint_operations.push_back({rank, job, *age, 0});
    } else {
      report.running.push_back({rank, job, *age});
    }
  }
  return report;
}

// Returns the report of a worker by hand about one rank.
Reattach ReattachOf(const TranscriptCommand& c, uint64_t run, Rank rank, const Token& token) {
  Reattach reattach;
  reattach.run = run;
  reattach.epoch = token.epoch;
  reattach.run_id = c.Value("run_id", kTranscriptRunId);
  reattach.ended = static_cast<int32_t>(NumberOf(c, "ended", 0));
  reattach.ranks.push_back(
      {rank, token, static_cast<int32_t>(NumberOf(c, "credit", 0)), NumberOf(c, "granted", 0)});
  return reattach;
}

}  // namespace

std::string TranscriptDriver::Do(const TranscriptCommand& command) {
  const absl::Status status = Carry(command);
  std::string text = page_.Take();
  if (!status.ok()) absl::StrAppend(&text, "error: ", status.message(), "\n");
  return text;
}

absl::Status TranscriptDriver::Carry(const Command& c) {
  using Method = absl::Status (TranscriptDriver::*)(const Command&);
  static const auto* const kMethods = new std::map<std::string, Method>{
      {"show", &TranscriptDriver::Show},        {"hide", &TranscriptDriver::Show},
      {"options", &TranscriptDriver::Options},  {"submit", &TranscriptDriver::Submit},
      {"cancel", &TranscriptDriver::Cancel},    {"stop", &TranscriptDriver::Cancel},
      {"move", &TranscriptDriver::Move},        {"drain", &TranscriptDriver::Move},
      {"hello", &TranscriptDriver::Hello},      {"send", &TranscriptDriver::Send},
      {"deliver", &TranscriptDriver::Packet},   {"drop", &TranscriptDriver::Packet},
      {"duplicate", &TranscriptDriver::Packet}, {"transfer", &TranscriptDriver::Run},
      {"settle", &TranscriptDriver::Run},       {"run", &TranscriptDriver::Run},
      {"end", &TranscriptDriver::End},          {"fail", &TranscriptDriver::Lose},
      {"break", &TranscriptDriver::Lose},       {"resume", &TranscriptDriver::Lose},
      {"close", &TranscriptDriver::Lose},       {"exit", &TranscriptDriver::Lose},
      {"restart", &TranscriptDriver::Lose},     {"return", &TranscriptDriver::Lose},
      {"tick", &TranscriptDriver::Tick},        {"list", &TranscriptDriver::Show}};
  const auto method = kMethods->find(c.name);
  if (method != kMethods->end()) return (this->*method->second)(c);
  return absl::InvalidArgumentError(absl::StrCat("no command ", c.name));
}

absl::StatusOr<TranscriptCores::Worker*> TranscriptDriver::WorkerOf(const Command& c) {
  if (c.words.empty()) return absl::InvalidArgumentError("the command needs a worker");
  return cores_.Find(c.words[0]);
}

absl::Status TranscriptDriver::Show(const Command& c) {
  for (const std::string& word : c.words) {
    const auto topic = std::find(kTopicNames.begin(), kTopicNames.end(), word);
    if (c.name != "list" && word == "all") {
      for (const Topic t : {Topic::kMessages, Topic::kTensors, Topic::kJobs, Topic::kRuns})
        page_.Show(t, c.name == "show");
    } else if (c.name != "list" && topic != kTopicNames.end()) {
      page_.Show(static_cast<Topic>(topic - kTopicNames.begin()), c.name == "show");
    } else if (c.name == "list" && word == "network") {
      cores_.ListNetwork();
    } else if (c.name == "list" && word == "tasks") {
      cores_.ListTasks();
    } else if (c.name == "list" && word == "workers") {
      cores_.ListWorkers();
    } else if (c.name == "list" && word == "runs") {
      cores_.ListRuns();
    } else if (c.name == "list" && word == "totals") {
      cores_.ListTotals();
    } else {
      return absl::InvalidArgumentError(absl::StrCat("nothing is called ", word));
    }
  }
  return absl::OkStatus();
}

absl::Status TranscriptDriver::Options(const Command& c) {
  CoreOptions core;
  LinkOptions link;
  absl::Status read = ReadDurations(c, {{"hello", &core.hello_ns},
                                        {"grace", &core.grace_ns},
                                        {"detection", &core.detection_ns},
                                        {"waiting", &core.waiting_ns},
                                        {"preparing", &core.preparing_ns},
                                        {"progress", &core.progress_ns},
                                        {"lease", &core.lease_ns},
                                        {"finishing", &core.finishing_ns},
                                        {"blame", &core.blame_ns},
                                        {"ending", &core.ending_ns},
                                        {"resend", &link.resend_ns},
                                        {"ack", &link.ack_delay_ns}});
  cores_.SetOptions(core, link);
  return read;
}

absl::Status TranscriptDriver::Submit(const Command& c) {
  absl::StatusOr<RunSchedule> schedule = ScheduleOf(c);
  if (!schedule.ok()) return schedule.status();
  CheckpointRule rule;
  rule.every_steps = static_cast<int32_t>(NumberOf(c, "checkpoint_every", 0));
  rule.validate_every = static_cast<int32_t>(NumberOf(c, "validate_every", 0));
  const auto steps = static_cast<int32_t>(NumberOf(c, "steps", 1));
  const auto first_step = static_cast<int32_t>(NumberOf(c, "first_step", 0));
  auto plan =
      MakeRunPlan("run", c.Value("schedule"), *schedule, steps, first_step,
                  c.Value("reduction") == "fast" ? ReductionMode::kFast : ReductionMode::kOrdered, rule);
  if (!plan.ok()) return plan.status();
  auto restartable = std::make_shared<RunPlan>(**plan);
  restartable->restarts = static_cast<int32_t>(NumberOf(c, "restarts", 0));
  restartable->resumed_spec = [this, text = c.text, schedule = *schedule, tables = (*plan)->tables, steps](
                                  const std::string& folder, int32_t step) {
    const std::string resumed = absl::StrCat(text, " resumed from ", folder);
    cores_.AddShape(resumed, {schedule, steps, step, tables});
    return resumed;
  };
  SubmitRun submit;
  submit.reply = ++replies_;
  submit.request = c.Value("request");
  submit.plan = std::move(restartable);
  submit.spec = c.text;
  submit.processes = static_cast<int32_t>(NumberOf(c, "processes", 0));
  submit.output = c.Value("output");
  submit.run_id = kTranscriptRunId;
  cores_.AddShape(submit.spec, {*std::move(schedule), steps, first_step, (*plan)->tables});
  page_.Head(Topic::kRuns, "coordinator takes a submission");
  cores_.StepCoordinator({std::move(submit)});
  return absl::OkStatus();
}

absl::Status TranscriptDriver::Cancel(const Command& c) {
  if (c.name == "stop") {
    page_.Head(Topic::kRuns, "coordinator is told to stop");
    cores_.StepCoordinator({StopAll{c.Value("reason")}});
    return absl::OkStatus();
  }
  const auto run = static_cast<uint64_t>(NumberOf(c, "run", 1));
  const bool save = std::count(c.words.begin(), c.words.end(), "save") > 0;
  page_.Head(Topic::kRuns,
             absl::StrCat("coordinator is told to cancel run ", run, save ? " with a checkpoint" : ""));
  cores_.StepCoordinator({CancelRun{++replies_, run, c.Value("reason"), save}});
  return absl::OkStatus();
}

absl::Status TranscriptDriver::Move(const Command& c) {
  if (c.words.empty()) return absl::InvalidArgumentError("the command needs a worker");
  const std::string& worker = c.words[0];
  if (c.name == "drain") {
    page_.Head(Topic::kRuns, absl::StrCat("coordinator is told to drain ", worker));
    cores_.StepCoordinator({DrainWorker{++replies_, worker, c.Value("reason")}});
    return absl::OkStatus();
  }
  const auto run = static_cast<uint64_t>(NumberOf(c, "run", 1));
  const auto rank = static_cast<Rank>(NumberOf(c, "rank", 0));
  page_.Head(Topic::kRuns,
             absl::StrCat("coordinator is told to move rank ", rank, " of run ", run, " to ", worker));
  cores_.StepCoordinator({MoveRanks{++replies_, run, {rank}, worker, c.Value("reason")}});
  return absl::OkStatus();
}

absl::Status TranscriptDriver::Hello(const Command& c) {
  if (c.words.empty()) return absl::InvalidArgumentError("hello needs a worker");
  weft::Hello hello;
  hello.worker = c.Value("name", c.words[0]);
  hello.host = "a";
  hello.process = static_cast<int32_t>(NumberOf(c, "process", -1));
  hello.address = "address";
  hello.device = c.Value("device", "cpu");
  hello.returns = std::count(c.words.begin(), c.words.end(), "returns") > 0;
  if (c.values.count("device") > 0) {
    hello.device_id = absl::StrCat(hello.device, "-", c.words[0]);
    hello.reduction_library = "nccl";
  }
  cores_.Connect(c.words[0], std::move(hello), std::count(c.words.begin(), c.words.end(), "by-hand") > 0);
  return absl::OkStatus();
}

absl::Status TranscriptDriver::Send(const Command& c) {
  const auto worker = WorkerOf(c);
  if (!worker.ok()) return worker.status();
  absl::StatusOr<FromWorker> message = Message(c, **worker);
  if (!message.ok()) return message.status();
  cores_.Send(**worker, *std::move(message));
  return absl::OkStatus();
}

absl::StatusOr<FromWorker> TranscriptDriver::Message(const Command& c, const TranscriptCores::Worker& w) {
  const std::string name = c.words.size() > 1 ? c.words[1] : "";
  const auto run = static_cast<uint64_t>(NumberOf(c, "run", static_cast<int64_t>(cores_.RunOf(w))));
  const auto rank = static_cast<Rank>(NumberOf(c, "rank", 0));
  const auto step = static_cast<int32_t>(NumberOf(c, "step", 0));
  Token token = cores_.TokenOf(w, rank);
  if (c.values.count("token") > 0) {
    const absl::StatusOr<Token> given = ParseTokenWords(c.Value("token"));
    if (!given.ok()) return given.status();
    token = *given;
  }
  if (name == "Hello") return weft::Hello{c.words[0], "a"};
  if (name == "Prepared") return Prepared{run};
  if (name == "Credit") return Credit{run, rank, token, static_cast<int32_t>(NumberOf(c, "credit", 0))};
  if (name == "Report") return ReportOf(c, run, rank);
  if (name == "Leaving") return Leaving{c.Value("reason")};
  if (name == "Failed") return FailureOf(c, run);
  if (name == "Reattach") return ReattachOf(c, run, rank, token);
  if (name == "Finished") return Finished{run, {}};
  if (name == "Forgotten") return Forgotten{run};
  if (name == "Stalled") return Stalled{run, c.Value("reason")};
  if (name == "LogLines") return LogLines{run, {{LogSeverity::kWarning, 0, c.Value("line")}}};
  if (name == "SnapshotSaved") return SnapshotSaved{run, step, c.Value("failure")};
  if (name == "CheckpointSealed") return CheckpointSealed{run, step, c.Value("failure")};
  if (name != "Completions") return absl::InvalidArgumentError(absl::StrCat("no message ", name));
  const absl::StatusOr<std::vector<Job>> jobs = JobsOf(c);
  if (!jobs.ok()) return jobs.status();
  Completions done{run, rank, token, {}};
  const std::optional<double> loss = LossOf(c);
  const absl::StatusOr<int64_t> took = ParseDuration(c.Value("took", "0s"));
  if (!took.ok()) return took.status();
  for (const Job& job : *jobs) done.jobs.push_back({job, 1, 2 + *took, loss.value_or(0), loss.has_value()});
  return done;
}

absl::Status TranscriptDriver::Packet(const Command& c) {
  if (c.words.empty()) return absl::InvalidArgumentError("write w0-> or ->w0");
  absl::string_view name = c.words[0];
  const bool up = absl::ConsumeSuffix(&name, "->");
  if (!up && !absl::ConsumePrefix(&name, "->")) return absl::InvalidArgumentError("write w0-> or ->w0");
  const auto worker = cores_.Find(std::string(name));
  if (!worker.ok()) return worker.status();
  if (c.name == "deliver") return cores_.Deliver(**worker, up);
  if (c.name == "drop") return cores_.Drop(**worker, up);
  return cores_.Duplicate(**worker, up);
}

absl::Status TranscriptDriver::Run(const Command& c) {
  if (c.name == "transfer") {
    cores_.Transfer();
  } else if (c.name == "settle") {
    cores_.Settle();
  } else {
    cores_.Run(static_cast<int>(NumberOf(c, "tasks", 10'000)));
  }
  return absl::OkStatus();
}

absl::Status TranscriptDriver::End(const Command& c) {
  const auto worker = WorkerOf(c);
  if (!worker.ok()) return worker.status();
  const std::string task = absl::StrJoin(c.words.begin() + 1, c.words.end(), " ");
  return cores_.EndTask(**worker, task, {LossOf(c), c.Value("failure")});
}

absl::Status TranscriptDriver::Lose(const Command& c) {
  if (c.name == "restart") {
    page_.Head(Topic::kRuns, "the coordinator is killed, and another one begins with what is stored");
    cores_.RestartCoordinator();
    return absl::OkStatus();
  }
  const auto worker = WorkerOf(c);
  if (!worker.ok()) return worker.status();
  TranscriptCores::Worker& w = **worker;
  const std::string reason = c.Value("reason");
  if (c.name == "fail") {
    cores_.Fail(w, FailureOf(c, 0));
  } else if (c.name == "break") {
    cores_.Break(w, reason);
  } else if (c.name == "resume") {
    cores_.Resume(w);
  } else if (c.name == "return") {
    cores_.Return(w);
  } else if (c.name == "close") {
    page_.Head(Topic::kMessages, absl::StrCat("coordinator sees the session of ", c.words[0], " end"));
    cores_.StepCoordinator({SessionClosed{cores_.SessionOf(w), reason}});
  } else {
    page_.Head(Topic::kMessages,
               absl::StrCat("coordinator hears that the process of ", c.words[0], " ended"));
    cores_.StepCoordinator({WorkerExited{cores_.PidOf(w), reason}});
  }
  return absl::OkStatus();
}

absl::Status TranscriptDriver::Tick(const Command& c) {
  if (c.words.empty()) return absl::InvalidArgumentError("write tick 10s");
  const absl::StatusOr<int64_t> ns = ParseDuration(c.words[0]);
  if (!ns.ok()) return ns.status();
  cores_.Advance(*ns);
  return absl::OkStatus();
}

}  // namespace weft
