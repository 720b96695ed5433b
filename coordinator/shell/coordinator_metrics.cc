#include "coordinator/shell/coordinator_metrics.h"

#include <chrono>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/release.h"
#include "proto/session/access.h"

namespace weft {
namespace {

Metrics::Labels VersionLabel() { return {{"version", std::string(Release())}}; }

constexpr int64_t kInterval = 50'000'000;

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

double UnixSeconds(int64_t monotonic_now, int64_t monotonic) {
  const auto wall =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return wall - Seconds(monotonic_now - monotonic);
}

// Adds a gauge for each of the states.
std::vector<Gauge> GaugesByState(Metrics* m, const std::string& name, const std::string& help,
                                 std::initializer_list<const char*> states) {
  std::vector<Gauge> gauges;
  for (const char* state : states) gauges.push_back(m->AddGauge(name, help, {{"state", state}}));
  return gauges;
}

// Returns the bounds of the buckets of such counts, in seconds.
template <class Counts>
std::vector<double> BoundsOf(const Counts& /*counts*/) {
  std::vector<double> bounds;
  for (const int64_t bound : Counts::Bounds()) bounds.push_back(Seconds(bound));
  return bounds;
}

template <class Counts>
void Raise(Histogram* histogram, const Counts& counts) {
  histogram->RaiseTo(std::vector<double>(counts.counts.begin(), counts.counts.end()), Seconds(counts.sum_ns));
}

void Raise(Counter* counter, uint64_t total) { counter->RaiseTo(static_cast<double>(total)); }

Counter CallsOf(Metrics* m, const std::string& method, absl::StatusCode code) {
  return m->AddCounter("weft_rpc_server_handled_total", "Calls of the run API that were answered.",
                       {{"method", method}, {"code", absl::StatusCodeToString(code)}});
}

}  // namespace

// ---- steps

CoordinatorMetrics::StepSeries::StepSeries(Metrics* m)
    : epoch(m->AddGauge("weft_epoch", "Epoch of the last attempt of a run.")),
      loss(m->AddGauge("weft_loss", "Loss of the last step that ended, of any run.")),
      gradient_norm(m->AddGauge("weft_gradient_norm",
                                "Global norm of the gradients of the last step that ended, before it was "
                                "clipped, of any run that clips.")),
      last_step(m->AddGauge("weft_last_step_timestamp_seconds",
                            "When the last step ended, since 1970; 0 before the first.")),
      wait(m->AddGauge("weft_step_wait_seconds",
                       "Time since the last step ended in which a run was running; 0 while none is.")),
      steps(m->AddCounter("weft_steps_total", "Steps that ended.")),
      non_finite(
          m->AddCounter("weft_non_finite_steps_total",
                        "Steps that were given up on all stages because a loss, gradient or weight was "
                        "infinite or not a number.")),
      running(m->AddCounter("weft_running_seconds_total", "Time in which at least one run was running.")) {}

void CoordinatorMetrics::StepSeries::Export(int64_t now, const Probe& probe) {
  epoch.Set(static_cast<double>(probe.epoch));
  if (probe.has_loss) loss.Set(probe.loss);
  if (probe.gradient_norm.has_value()) gradient_norm.Set(*probe.gradient_norm);
  Raise(&steps, probe.steps);
  Raise(&non_finite, probe.non_finite_steps);
  if (probe.last_step_ns != 0) last_step.Set(UnixSeconds(now, probe.last_step_ns));
  const int64_t since = probe.running_since_ns == 0 ? 0 : now - probe.running_since_ns;
  running.RaiseTo(Seconds(probe.running_ns + since));
  wait.Set(Seconds(probe.step_wait_ns + since));
}

// ---- runs

CoordinatorMetrics::RunSeries::RunSeries(Metrics* m)
    : quarantined(m->AddCounter("weft_jobs_quarantined_total",
                                "Jobs that ended each process which took them; each failed its run.")),
      queue_wait(m->AddHistogram("weft_queue_wait_seconds", "Time from the submission of a run until it ran.",
                                 BoundsOf(Probe().queue_wait))) {
  for (int s = 0; s < kRunStates; ++s) {
    const std::string state(RunStateName(static_cast<RunState>(s)));
    runs.push_back(
        m->AddGauge("weft_runs", "Runs by state; of those that ended, the last ones.", {{"state", state}}));
    if (!IsFinal(static_cast<RunState>(s))) continue;
    ended.push_back(m->AddCounter("weft_runs_ended_total", "Runs that ended, by how.", {{"state", state}}));
  }
  for (int c = 0; c < kRestartCauses; ++c) {
    restarts.push_back(
        m->AddCounter("weft_run_restarts_total", "Runs that began again, by cause.",
                      {{"cause", std::string(RestartCauseName(static_cast<RestartCause>(c)))}}));
  }
  for (int p = 0; p < kRecoveryPhases; ++p) {
    recovery.push_back(
        m->AddCounter("weft_recovery_seconds_total", "Time from a loss to the next new step of its run.",
                      {{"phase", std::string(RecoveryPhaseName(static_cast<RecoveryPhase>(p)))}}));
  }
}

void CoordinatorMetrics::RunSeries::Export(const Probe& probe) {
  for (int s = 0; s < kRunStates; ++s) runs[s].Set(static_cast<double>(probe.runs[s]));
  const int first_final = static_cast<int>(RunState::kFinished);
  for (int s = first_final; s < kRunStates; ++s) Raise(&ended[s - first_final], probe.runs_ended[s]);
  for (int c = 0; c < kRestartCauses; ++c) Raise(&restarts[c], probe.restarts[c]);
  for (int p = 0; p < kRecoveryPhases; ++p) recovery[p].RaiseTo(Seconds(probe.recovery_ns[p]));
  Raise(&quarantined, probe.jobs_quarantined);
  Raise(&queue_wait, probe.queue_wait);
}

// ---- jobs

CoordinatorMetrics::JobSeries::JobSeries(Metrics* m)
    : jobs(GaugesByState(m, "weft_jobs",
                         "Jobs of the live runs by state; those not done within the window of steps.",
                         {"blocked", "ready", "claimed", "done"})),
      grants(m->AddCounter("weft_grants_total", "Jobs granted to ranks.")),
      duplicates(m->AddCounter("weft_duplicate_completions_total",
                               "Completions of jobs that were done before; they changed nothing.")),
      claims(m->AddHistogram(
          "weft_claim_latency_seconds",
          "Time from the start of a turn of the loop, which takes messages of workers, until the jobs that "
          "they could claim were sent. The wait for the turn is not in it.",
          ExponentialBounds(16e-6, 4, 9))) {
  for (int k = 0; k < kJobKinds; ++k) {
    const Metrics::Labels kind = {{"kind", std::string(JobKindName(static_cast<JobKind>(k)))}};
    completed.push_back(
        m->AddCounter("weft_job_completions_total", "Jobs that were done, each counted once.", kind));
    times.push_back(m->AddHistogram("weft_job_duration_seconds", "Time that jobs took, by kind.",
                                    ExponentialBounds(0.001, 6, 7), kind));
  }
}

void CoordinatorMetrics::JobSeries::Export(const Probe& probe) {
  const int64_t states[] = {probe.jobs.blocked, probe.jobs.ready, probe.jobs.claimed, probe.jobs.done};
  for (int i = 0; i < 4; ++i) jobs[i].Set(static_cast<double>(states[i]));
  for (int k = 0; k < kJobKinds; ++k) Raise(&completed[k], probe.completions[k]);
  Raise(&grants, probe.grants);
  Raise(&duplicates, probe.duplicate_completions);
}

// ---- checkpoints

CoordinatorMetrics::CheckpointSeries::CheckpointSeries(Metrics* m)
    : overdue(m->AddGauge("weft_checkpoint_overdue_seconds",
                          "Age of the newest checkpoint of a running run that has gone on for more than two "
                          "intervals of checkpoints since; the largest of all such runs, 0 for none.")),
      failures(m->AddCounter("weft_checkpoint_failures_total", "Checkpoints that could not be saved.")),
      times(m->AddHistogram("weft_checkpoint_duration_seconds",
                            "Time from the announcement of a checkpoint until it was complete.",
                            BoundsOf(Probe().checkpoints))) {}

void CoordinatorMetrics::CheckpointSeries::Export(const Probe& probe) {
  overdue.Set(Seconds(probe.checkpoint_overdue_ns));
  Raise(&failures, probe.failed_checkpoints);
  Raise(&times, probe.checkpoints);
}

// ---- workers and their sessions

CoordinatorMetrics::WorkerSeries::WorkerSeries(Metrics* m)
    : workers(GaugesByState(m, "weft_workers",
                            "Connected worker processes; ending: has not told yet that it forgot an aborted "
                            "run; broken: the session may be resumed.",
                            {"free", "busy", "ending", "broken"})),
      chosen_last(m->AddGauge("weft_workers_chosen_last",
                              "Worker processes that get no run while others are free, because the last run "
                              "failed with them.")),
      lost(m->AddCounter("weft_workers_lost_total", "Worker processes that were given up as lost.")),
      leases(m->AddCounter("weft_leases_expired_total",
                           "Worker processes that were given up because they were silent for a lease.")),
      fenced(
          m->AddCounter("weft_fenced_total",
                        "Messages with a stale token, of a run that is over or of a session that has ended, "
                        "and sessions that came back after that; they changed nothing.")),
      violations(
          m->AddCounter("weft_protocol_violations_total",
                        "Messages that a correct worker of a release that this one works with never sends; "
                        "each failed its run, or ended its session.")),
      received(m->AddCounter("weft_session_messages_total", "Messages of sessions, each counted once.",
                             {{"direction", "received"}})),
      sent(m->AddCounter("weft_session_messages_total", "Messages of sessions, each counted once.",
                         {{"direction", "sent"}})),
      resumed(m->AddCounter("weft_sessions_resumed_total",
                            "Connections that replaced a broken connection of a session.")) {}

void CoordinatorMetrics::WorkerSeries::Export(const Probe& probe, const SessionCounts& sessions) {
  const int64_t states[] = {probe.workers_free, probe.workers_busy, probe.workers_ending,
                            probe.workers_broken};
  for (int i = 0; i < 4; ++i) workers[i].Set(static_cast<double>(states[i]));
  chosen_last.Set(static_cast<double>(probe.workers_chosen_last));
  Raise(&lost, probe.workers_lost);
  Raise(&leases, probe.leases_expired);
  Raise(&fenced, probe.fenced + sessions.refused);
  Raise(&violations, probe.violations + sessions.violations);
  Raise(&received, probe.messages_received);
  Raise(&sent, probe.messages_sent);
  Raise(&resumed, sessions.resumed);
}

// ---- all

CoordinatorMetrics::CoordinatorMetrics(Metrics* m)
    : metrics_(m),
      steps_(m),
      runs_(m),
      jobs_(m),
      checkpoints_(m),
      workers_(m),
      calls_(m->AddHistogram("weft_rpc_server_handling_seconds",
                             "Time from the arrival of a call of the run API until its answer.",
                             ExponentialBounds(0.0005, 4, 8))) {
  m->AddGauge("weft_build_info", "1, with the version of this program.", VersionLabel()).Set(1);
  for (const MethodAccess& method : AccessTable()) {
    absl::string_view name = method.path;
    if (absl::ConsumePrefix(&name, "/weft.v1.Runs/")) CallsOf(m, std::string(name), absl::StatusCode::kOk);
  }
}

void CoordinatorMetrics::Update(int64_t now, const CoordinatorCore& core, const SessionCounts& sessions) {
  if (now - exported_ < kInterval) {
    due_ = exported_ + kInterval;
    return;
  }
  exported_ = now;
  due_ = INT64_MAX;
  const Probe probe = core.probe();
  steps_.Export(now, probe);
  runs_.Export(probe);
  jobs_.Export(probe);
  checkpoints_.Export(probe);
  workers_.Export(probe, sessions);
}

void CoordinatorMetrics::Hear(const JobsEnded& jobs) {
  for (const Completion& done : jobs.jobs)
    jobs_.times[static_cast<int>(done.job.kind)].Observe(Seconds(done.end_ns - done.start_ns));
}

void CoordinatorMetrics::HearClaims(int64_t ns) { jobs_.claims.Observe(Seconds(ns)); }

void CoordinatorMetrics::HearCall(const std::string& method, absl::StatusCode code,
                                  std::optional<int64_t> ns) {
  CallsOf(metrics_, method, code).Add();
  if (ns.has_value()) calls_.Observe(Seconds(*ns));
}

}  // namespace weft
