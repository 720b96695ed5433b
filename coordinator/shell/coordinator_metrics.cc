#include "coordinator/shell/coordinator_metrics.h"

#include <chrono>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/release.h"

namespace weft {
namespace {

Metrics::Labels VersionLabel() { return {{"version", std::string(Release())}}; }

constexpr int64_t kInterval = 50'000'000;

double UnixSeconds(int64_t monotonic_now, int64_t monotonic) {
  const auto wall =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return wall - static_cast<double>(monotonic_now - monotonic) * 1e-9;
}

// Adds a gauge for each of the states.
std::vector<Gauge> GaugesByState(Metrics* m, const std::string& name, const std::string& help,
                                 std::initializer_list<const char*> states) {
  std::vector<Gauge> gauges;
  for (const char* state : states) gauges.push_back(m->AddGauge(name, help, {{"state", state}}));
  return gauges;
}

}  // namespace

CoordinatorMetrics::CoordinatorMetrics(Metrics* m)
    : epoch_(m->AddGauge("weft_epoch", "Epoch of the last attempt of a run.")),
      loss_(m->AddGauge("weft_loss", "Loss of the last step that ended, of any run.")),
      gradient_norm_(m->AddGauge("weft_gradient_norm",
                                 "Global norm of the gradients of the last step that ended, before it was "
                                 "clipped, of any run that clips.")),
      last_step_(m->AddGauge("weft_last_step_timestamp_seconds",
                             "When the last step ended, since 1970; 0 before the first.")),
      steps_(m->AddCounter("weft_steps_total", "Steps that ended.")),
      fenced_(m->AddCounter(
          "weft_fenced_total",
          "Messages with a stale token, of a run that is over or of a session that has ended, and "
          "sessions that came back after that; they changed nothing.")),
      duplicates_(m->AddCounter("weft_duplicate_completions_total",
                                "Completions of jobs that were done before; they changed nothing.")),
      violations_(
          m->AddCounter("weft_protocol_violations_total",
                        "Messages that a correct worker never sends; each failed its run, or ended its "
                        "session.")),
      grants_(m->AddCounter("weft_grants_total", "Jobs granted to ranks.")),
      received_(m->AddCounter("weft_session_messages_total", "Messages of sessions, each counted once.",
                              {{"direction", "received"}})),
      sent_(m->AddCounter("weft_session_messages_total", "Messages of sessions, each counted once.",
                          {{"direction", "sent"}})),
      lost_(m->AddCounter("weft_workers_lost_total", "Worker processes that were given up as lost.")),
      restarts_(m->AddCounter("weft_run_restarts_total",
                              "Runs that began again because they lost a worker process or a link.")),
      non_finite_(
          m->AddCounter("weft_non_finite_steps_total",
                        "Steps that were given up on all stages because a loss, gradient or weight was "
                        "infinite or not a number.")),
      resumed_(m->AddCounter("weft_sessions_resumed_total",
                             "Connections that replaced a broken connection of a session.")) {
  m->AddGauge("weft_build_info", "1, with the version of this program.", VersionLabel()).Set(1);
  jobs_ = GaugesByState(m, "weft_jobs",
                        "Jobs of the live runs by state; those not done within the window of steps.",
                        {"blocked", "ready", "claimed", "done"});
  for (int k = 0; k < kJobKinds; ++k) {
    completed_.push_back(m->AddCounter("weft_job_completions_total",
                                       "Jobs that were done, each counted once.",
                                       {{"kind", std::string(JobKindName(static_cast<JobKind>(k)))}}));
  }
  for (int s = 0; s < kRunStates; ++s) {
    const std::string state(RunStateName(static_cast<RunState>(s)));
    runs_.push_back(
        m->AddGauge("weft_runs", "Runs by state; of those that ended, the last ones.", {{"state", state}}));
    if (!IsFinal(static_cast<RunState>(s))) continue;
    ended_.push_back(m->AddCounter("weft_runs_ended_total", "Runs that ended, by how.", {{"state", state}}));
  }
  for (int p = 0; p < kRecoveryPhases; ++p) {
    recovery_.push_back(
        m->AddCounter("weft_recovery_seconds_total", "Time from a loss to the next new step of its run.",
                      {{"phase", std::string(RecoveryPhaseName(static_cast<RecoveryPhase>(p)))}}));
  }
  workers_ = GaugesByState(m, "weft_workers",
                           "Connected worker processes; ending: has not told yet that it forgot an aborted "
                           "run; broken: the session may be resumed.",
                           {"free", "busy", "ending", "broken"});
}

void CoordinatorMetrics::Update(int64_t now, const CoordinatorCore& core, const SessionCounts& sessions) {
  if (now - exported_ < kInterval) {
    due_ = exported_ + kInterval;
    return;
  }
  exported_ = now;
  due_ = INT64_MAX;
  const Probe probe = core.probe();
  Export(probe, sessions);
  if (probe.last_step_ns != 0) last_step_.Set(UnixSeconds(now, probe.last_step_ns));
}

void CoordinatorMetrics::Export(const Probe& probe, const SessionCounts& sessions) {
  epoch_.Set(static_cast<double>(probe.epoch));
  if (probe.has_loss) loss_.Set(probe.loss);
  if (probe.gradient_norm.has_value()) gradient_norm_.Set(*probe.gradient_norm);
  steps_.RaiseTo(static_cast<double>(probe.steps));
  duplicates_.RaiseTo(static_cast<double>(probe.duplicate_completions));
  fenced_.RaiseTo(static_cast<double>(probe.fenced + sessions.refused));
  violations_.RaiseTo(static_cast<double>(probe.violations + sessions.violations));
  grants_.RaiseTo(static_cast<double>(probe.grants));
  received_.RaiseTo(static_cast<double>(probe.messages_received));
  sent_.RaiseTo(static_cast<double>(probe.messages_sent));
  lost_.RaiseTo(static_cast<double>(probe.workers_lost));
  restarts_.RaiseTo(static_cast<double>(probe.restarts));
  non_finite_.RaiseTo(static_cast<double>(probe.non_finite_steps));
  for (int p = 0; p < kRecoveryPhases; ++p)
    recovery_[p].RaiseTo(static_cast<double>(probe.recovery_ns[p]) * 1e-9);
  resumed_.RaiseTo(static_cast<double>(sessions.resumed));
  const int64_t jobs[] = {probe.jobs.blocked, probe.jobs.ready, probe.jobs.claimed, probe.jobs.done};
  for (int i = 0; i < 4; ++i) jobs_[i].Set(static_cast<double>(jobs[i]));
  for (int k = 0; k < kJobKinds; ++k) completed_[k].RaiseTo(static_cast<double>(probe.completions[k]));
  for (int s = 0; s < kRunStates; ++s) runs_[s].Set(static_cast<double>(probe.runs[s]));
  const int first_final = static_cast<int>(RunState::kFinished);
  for (int s = first_final; s < kRunStates; ++s)
    ended_[s - first_final].RaiseTo(static_cast<double>(probe.runs_ended[s]));
  const int64_t workers[] = {probe.workers_free, probe.workers_busy, probe.workers_ending,
                             probe.workers_broken};
  for (int i = 0; i < 4; ++i) workers_[i].Set(static_cast<double>(workers[i]));
}

}  // namespace weft
