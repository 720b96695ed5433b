#include "weft/client.h"

#include <atomic>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"
#include "base/event_line.h"
#include "base/monotonic_clock.h"
#include "client/files/run_file.h"
#include "client/runs/runs_client.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

static_assert(static_cast<int>(Client::State::kCancelled) == static_cast<int>(RunState::kCancelled) &&
                  static_cast<int>(Client::State::kCancelled) + 1 == kRunStates,
              "the states of both are the same, in one order");

std::string_view TextOf(absl::string_view text) { return {text.data(), text.size()}; }

Client::Run PublicRun(const RunInfo& run) {
  Client::Run out;
  out.id = run.id;
  out.name = run.name;
  out.schedule = run.schedule;
  out.state = static_cast<Client::State>(run.state);
  out.reason = run.reason;
  out.output = run.output;
  out.output_failure = run.output_failure;
  out.file = run.file;
  out.pool = run.terms.pool;
  out.owner = run.terms.owner;
  out.priority = run.terms.priority;
  out.ranks = run.ranks;
  out.processes = run.processes;
  out.steps = run.steps;
  out.steps_done = run.steps_done;
  if (run.has_loss) out.loss = run.loss;
  if (const auto& v = run.validation; v.has_value() && v->failure.empty() && v->samples == v->all_samples)
    out.validation = {v->step, v->loss, v->metrics};
  if (run.checkpoint_step >= 0) out.checkpoint_step = run.checkpoint_step;
  out.checkpoint_failure = run.checkpoint_failure;
  out.restarts = run.restarts;
  out.restart_reason = run.restart_reason;
  out.members = run.members;
  out.submitted_ns = run.submitted_ns;
  out.started_ns = run.started_ns;
  out.ended_ns = run.ended_ns;
  return out;
}

Client::Worker PublicWorker(const WorkerInfo& worker) {
  return {worker.process, worker.name, worker.host, worker.pid, worker.device,
          worker.state,   worker.run,  worker.pool, worker.node};
}

Client::LogPart PublicLog(RunLogPart part) {
  Client::LogPart out;
  for (RunLogLine& line : part.lines) {
    out.lines.push_back({line.number,
                         TextOf(LogSeverityName(line.entry.severity)),
                         line.entry.unix_ns,
                         std::move(line.writer),
                         {line.ranks.begin(), line.ranks.end()},
                         std::move(line.entry.text)});
  }
  out.dropped = part.dropped;
  out.more = part.more;
  out.ended = part.ended;
  return out;
}

// Takes an event into the run that it tells of.
void Take(const RunEvent& event, Client::Run& run) {
  if (const auto* changed = std::get_if<RunInfo>(&event)) {
    std::optional<double> norm = run.gradient_norm;
    run = PublicRun(*changed);
    run.gradient_norm = norm;
  } else {
    const StepDone& step = std::get<StepDone>(event);
    run.steps_done = step.step + 1;
    run.loss = step.has_loss ? std::optional<double>(step.loss) : std::nullopt;
    run.gradient_norm = step.gradient_norm;
  }
}

template <typename Out, typename In>
absl::StatusOr<std::vector<Out>> EachOf(const absl::StatusOr<std::vector<In>>& all,
                                        Out (*convert)(const In&)) {
  if (!all.ok()) return all.status();
  std::vector<Out> out;
  for (const In& one : *all) out.push_back(convert(one));
  return out;
}

}  // namespace

class Client::Connection {
 public:
  Connection(std::unique_ptr<RunsClient> runs, int64_t patience_ns)
      : runs_(std::move(runs)), patience_ns_(patience_ns) {}

  RunsClient& runs() const { return *runs_; }

  // Notes that the coordinator has answered, and returns what it says.
  template <typename T>
  absl::StatusOr<T> Heard(absl::StatusOr<T> answer) {
    if (answer.ok()) known_ = true;
    return answer;
  }

  absl::StatusOr<uint64_t> Submit(const SubmitRequest& request) {
    return Heard(SubmitPatiently(*runs_, request, patience_ns_));
  }

  absl::StatusOr<Run> Follow(uint64_t id, const std::function<bool(const Run&)>& hear, int64_t until_ns) {
    Run run;
    const auto take = [&](const RunEvent& event) {
      known_ = true;
      Take(event, run);
      return hear(run);
    };
    const absl::Status end = FollowRun(
        *runs_, id, known_, patience_ns_, take, [] {}, until_ns);
    if (!end.ok()) return end;
    return run;
  }

 private:
  const std::unique_ptr<RunsClient> runs_;
  const int64_t patience_ns_;
  std::atomic<bool> known_ = false;  // the coordinator has answered before
};

std::string_view Client::NameOf(State state) { return TextOf(RunStateName(static_cast<RunState>(state))); }

absl::StatusOr<Client> Client::Make(const Options& options) {
  absl::StatusOr<std::unique_ptr<RunsClient>> runs = RunsClient::Create(
      options.coordinator, {options.tls, options.insecure, options.token}, options.call_time.count());
  if (!runs.ok()) return runs.status();
  return Client(std::make_unique<Connection>(*std::move(runs), options.patience.count()));
}

Client::Client(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

absl::StatusOr<std::string> Client::ReadRunFile(const std::string& path) {
  const absl::StatusOr<RunSpec> run = weft::ReadRunFile(path, RunFileData::kElsewhere);
  if (!run.ok()) return run.status();
  return ToJson(*run).dump();
}

absl::StatusOr<uint64_t> Client::Submit(const Submission& submission) {
  SubmitRequest request;
  request.request = submission.request.empty() ? RequestName() : submission.request;
  request.spec = submission.run_file;
  request.processes = submission.processes;
  request.output = submission.output;
  request.overwrite = submission.overwrite;
  request.file = submission.file;
  request.terms.priority = submission.priority;
  request.terms.pool = submission.pool;
  return connection_->Submit(request);
}

absl::StatusOr<Client::Run> Client::Get(uint64_t run) {
  const absl::StatusOr<RunInfo> info = connection_->Heard(connection_->runs().Get(run));
  if (!info.ok()) return info.status();
  return PublicRun(*info);
}

absl::StatusOr<std::vector<Client::Run>> Client::List() {
  return EachOf(connection_->Heard(connection_->runs().List()), PublicRun);
}

absl::StatusOr<std::vector<Client::Worker>> Client::ListWorkers() {
  return EachOf(connection_->Heard(connection_->runs().ListWorkers()), PublicWorker);
}

absl::StatusOr<Client::Run> Client::Cancel(uint64_t run, const std::string& reason, bool save) {
  const absl::StatusOr<RunInfo> info = connection_->Heard(connection_->runs().Cancel(run, reason, save));
  if (!info.ok()) return info.status();
  return PublicRun(*info);
}

absl::StatusOr<Client::LogPart> Client::Logs(uint64_t run, LogPlace* place, std::optional<int> rank) {
  RunsClient::LogPlace at{place->log, place->after};
  absl::StatusOr<RunLogPart> part = connection_->Heard(connection_->runs().Logs(run, rank.value_or(-1), &at));
  if (!part.ok()) return part.status();
  *place = {at.log, at.after};
  return PublicLog(*std::move(part));
}

absl::StatusOr<Client::Run> Client::Watch(uint64_t run, const std::function<bool(const Run&)>& hear) {
  return connection_->Follow(run, hear, INT64_MAX);
}

absl::StatusOr<Client::Run> Client::Wait(uint64_t run, std::chrono::nanoseconds most) {
  const int64_t now = MonotonicNow();
  const int64_t until = most.count() < INT64_MAX - now ? now + most.count() : INT64_MAX;
  return connection_->Follow(
      run, [](const Run&) { return true; }, until);
}

void Client::Stop() { connection_->runs().Stop(); }

}  // namespace weft
