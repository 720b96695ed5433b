#!/usr/bin/env python3
"""Writes Grafana's dashboards of Weft from the tables below: make_dashboards.py [--check] [FOLDER]

A dashboard is a list of rows, and a row a list of panels: title, unit, description and queries. --check compares with what is there and
fails if it differs. Dashboards have a fixed uid and no id, so that they provision the same everywhere, and ask for their data source
by a variable, because provisioning fills in no inputs."""
import argparse
import json
import pathlib
import sys

BUSY = 'sum by (instance) (rate(weft_busy_seconds_total[$__rate_interval]))'
IDLE = 'sum by ({by}) (rate(weft_idle_seconds_total{{cause!="no_work"}}[$__rate_interval]))'


def panel(title, unit, queries, description, kind="timeseries", width=12, stack=False):
    """One panel; queries: [(PromQL, legend), ..]; width: columns of 24."""
    return {"title": title, "unit": unit, "queries": queries, "description": description, "kind": kind, "width": width,
            "stack": stack}


def quantiles(metric, by=()):
    """The median and the 99th percentile of a histogram."""
    labels, legend = ", ".join(["le", *by]), "".join(f" {{{{{label}}}}}" for label in by)
    return [(f'histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))', f"{name}{legend}")
            for share, name in ((0.5, "p50"), (0.99, "p99"))]


def number(title, unit, query, description):
    return panel(title, unit, [(query, "")], description, kind="stat", width=4)


FLEET = ("weft-fleet", "Weft: fleet", [
    ("Now", [
        number("Runs under way", "none", 'sum(weft_runs{state="running"})', "Runs whose jobs are granted."),
        number("Runs that wait", "none", 'sum(weft_runs{state="waiting"})', "Runs that wait for workers or for their turn."),
        number("Workers that compute", "none", 'sum(weft_workers{state="busy"})', "Worker processes that serve a run."),
        number("Free workers", "none", 'sum(weft_workers{state="free"})', "Worker processes that could take a run."),
        number("Runs that failed, a day", "none", 'sum(increase(weft_runs_ended_total{state="failed"}[1d]))',
               "Runs that ended as failed within a day."),
        number("Last step", "dateTimeFromNow", 'max(weft_last_step_timestamp_seconds) * 1000', "When the last step of any run ended."),
    ]),
    ("Work", [
        panel("Steps", "ops", [('sum by (instance) (rate(weft_steps_total[$__rate_interval]))', "{{instance}}")],
              "Steps that end, a second, of all runs of a coordinator."),
        panel("Jobs by kind", "ops", [('sum by (kind) (rate(weft_job_completions_total[$__rate_interval]))', "{{kind}}")],
              "Jobs that are done, a second.", stack=True),
        panel("Workers by state", "none", [('sum by (state) (weft_workers)', "{{state}}")],
              "broken: the connection may still come back. ending: the process has not left its aborted run yet.", stack=True),
        panel("Runs by state", "none", [('sum by (state) (weft_runs{state=~"waiting|preparing|running|finishing"})', "{{state}}")],
              "Runs that have not ended.", stack=True),
        panel("Wait in the queue", "s", quantiles("weft_queue_wait_seconds"),
              "Time from the submission of a run until it ran."),
        panel("Claims and calls", "s",
              [*((query, f"claim {name}") for query, name in quantiles("weft_claim_latency_seconds")),
               *((query, f"call {name}") for query, name in quantiles("weft_rpc_server_handling_seconds"))],
              "How long workers wait for the jobs that they may claim, and clients of the run API for an answer."),
    ]),
    ("Faults", [
        panel("Lost workers", "none",
              [('sum(increase(weft_workers_lost_total[$__rate_interval]))', "lost"),
               ('sum(increase(weft_leases_expired_total[$__rate_interval]))', "of these for their silence"),
               ('sum(weft_workers_chosen_last)', "chosen last")],
              "A run that loses a worker begins again by itself. chosen last: the last run failed with them."),
        panel("Runs that began again by cause", "none",
              [('sum by (cause) (increase(weft_run_restarts_total[$__rate_interval]))', "{{cause}}")],
              "relocated is no loss: the run goes on with other processes, or under another schedule.", stack=True),
        panel("Time of recoveries by phase", "s",
              [('sum by (phase) (increase(weft_recovery_seconds_total[$__rate_interval]))', "{{phase}}")],
              "Time from a loss to the next new step: the others leave the attempt, state is read, the first job, the step.",
              stack=True),
        panel("Messages that changed nothing", "ops",
              [('sum(rate(weft_fenced_total{job="weft-coordinator"}[$__rate_interval]))', "stale token"),
               ('sum(rate(weft_duplicate_completions_total[$__rate_interval]))', "done before"),
               ('sum(rate(weft_protocol_violations_total[$__rate_interval]))', "violation")],
              "Stale and repeated messages are harmless. A violation fails its run."),
        panel("Commits of the store", "s",
              [('histogram_quantile(0.5, sum by (le) (rate(weft_store_commit_seconds_bucket[$__rate_interval])))', "p50"),
               ('histogram_quantile(0.99, sum by (le) (rate(weft_store_commit_seconds_bucket[$__rate_interval])))', "p99")],
              "How long answers and sealed checkpoints wait for the disk. Only with a store."),
        panel("Lines of the logs by level", "ops",
              [('sum by (job, level) (rate(weft_log_messages_total{level!="info"}[$__rate_interval]))', "{{job}} {{level}}")],
              "A second. Each daemon's log has them."),
        panel("Calls by method and code", "ops",
              [('sum by (method, code) (rate(weft_rpc_server_handled_total[$__rate_interval]))', "{{method}} {{code}}")],
              "Answers of the run API, a second."),
    ]),
    ("Coordinators and configurations", [
        panel("Leading coordinators", "none", [('weft_coordinator_leads', "{{instance}}")],
              "1 for the one that serves; 0 for those that start or stand by."),
        panel("Time until certificates end", "s", [('weft_certificate_expiry_timestamp_seconds - time()', "{{job}} {{instance}}")],
              "Behind it nobody can connect any more. Only with TLS."),
        panel("Configurations that were taken", "none", [('weft_config_last_reload_successful', "{{job}} {{instance}}")],
              "0 after a SIGHUP whose configuration could not be read."),
        panel("Room on the disk of the store", "bytes", [('weft_store_free_bytes', "{{instance}}")], "Only with a store in a folder."),
        panel("Daemons without TLS by --insecure", "none", [('sum by (job) (weft_insecure)', "{{job}}")],
              "Everybody who reaches them may do everything."),
    ]),
])

RUN = ("weft-run", "Weft: training", [
    ("Progress", [
        panel("Loss", "none", [('weft_loss', "{{instance}}")], "Loss of the last step that ended, of any run of the coordinator."),
        panel("Norm of the gradients", "none", [('weft_gradient_norm', "{{instance}}")],
              "Before it was clipped; of runs that clip."),
        panel("Seconds a step", "s", [('1 / (sum by (instance) (rate(weft_steps_total[$__rate_interval])) > 0)', "{{instance}}")],
              "Of all runs of the coordinator together."),
        panel("Steps given up for a number that is not finite", "none",
              [('sum by (instance) (increase(weft_non_finite_steps_total[$__rate_interval]))', "{{instance}}")],
              "Each such step is made once more."),
        panel("Wait for a step", "s", [('weft_step_wait_seconds', "{{instance}}")],
              "Time since the last step ended in which a run was running."),
        panel("Time in which runs ran", "percentunit", [('rate(weft_running_seconds_total[$__rate_interval])', "{{instance}}")],
              "Share of the time in which at least one run of the coordinator was running."),
    ]),
    ("Checkpoints", [
        panel("Checkpoints that are late", "s", [('weft_checkpoint_overdue_seconds', "{{instance}}")],
              "Age of the newest checkpoint of a running run that has gone on for more than two intervals since; 0 if none has."),
        panel("Time of a checkpoint", "s", quantiles("weft_checkpoint_duration_seconds"),
              "From its announcement until it was complete. Training goes on meanwhile."),
        panel("Bytes written to checkpoints", "Bps",
              [('sum by (instance) (rate(weft_checkpoint_written_bytes_total[$__rate_interval]))', "{{instance}}")],
              "By the workers, beside the training."),
        panel("Checkpoints that could not be saved", "none",
              [('sum by (instance) (increase(weft_checkpoint_failures_total[$__rate_interval]))', "{{instance}}")],
              "weft describe has the reason. The run goes on."),
    ]),
    ("Why ranks are idle", [
        panel("Busy and idle by cause", "percentunit",
              [(f'sum({BUSY}) / (sum({BUSY}) + sum({IDLE.format(by="instance")}))', "busy"),
               (f'{IDLE.format(by="cause")} / scalar(sum({BUSY}) + sum({IDLE.format(by="instance")}))', "{{cause}}")],
              "Shares of the ranks' time in runs. dependency: the bubble of the schedule. transfer: a tensor is on its way. "
              "memory: no activation fits. dispatch: the runtime. recovery: a worker was lost.", width=24, stack=True),
        panel("Computing by kind", "percentunit",
              [('sum by (kind) (rate(weft_busy_seconds_total[$__rate_interval])) '
                '/ scalar(sum(rate(weft_busy_seconds_total[$__rate_interval])))', "{{kind}}")],
              "Shares of the time that ranks compute.", stack=True),
        panel("Jobs in the window of steps", "none", [('sum by (state) (weft_jobs{state!="done"})', "{{state}}")],
              "claimed: granted to ranks. ready: their inputs are there. blocked: not yet.", stack=True),
        panel("Time of a job by kind", "s", quantiles("weft_job_duration_seconds", ["kind"]), "Of all runs of the coordinators.",
              width=24),
    ]),
])

WORKER = ("weft-worker", "Weft: workers", [
    ("Time", [
        panel("Share of time that ranks compute", "percentunit",
              [(f'{BUSY} / ({BUSY} + {IDLE.format(by="instance")})', "{{instance}}")],
              "Of the time of the worker's ranks in runs."),
        panel("Idle by cause", "s", [('sum by (instance, cause) (rate(weft_idle_seconds_total{cause!="no_work"}[$__rate_interval]))',
                                      "{{instance}} {{cause}}")],
              "Idle seconds a second, summed over the ranks of a process."),
    ]),
    ("Memory", [
        panel("Bytes alive by class", "bytes", [('sum by (class) (weft_memory_bytes)', "{{class}}")],
              "Of the ranks of all workers.", stack=True),
        panel("Peaks by worker", "bytes", [('sum by (instance) (weft_memory_peak_bytes)', "{{instance}}")],
              "The sum of the peaks of all classes, since the run began."),
        panel("Versions of weights", "none", [('max by (instance) (weft_weight_versions_peak)', "{{instance}}")],
              "The most versions of one stage's weights that one rank held."),
        panel("Activations alive by worker", "bytes", [('weft_memory_bytes{class="activations"}', "{{instance}}")],
              "What schedules with a limit bound."),
    ]),
    ("Faults", [
        panel("Runs that the worker reported as failed", "none",
              [('sum by (instance) (increase(weft_worker_failures_total[$__rate_interval]))', "{{instance}}")],
              "The worker's log has the reasons."),
        panel("Time that threads wrote checkpoints", "s",
              [('sum by (instance) (rate(weft_checkpoint_write_seconds_total[$__rate_interval]))', "{{instance}}")],
              "Seconds a second, of the two threads of a process. At 2 the disk is the bottleneck."),
        panel("Pieces of checkpoints that could not be written", "none",
              [('sum by (instance) (increase(weft_checkpoint_write_failures_total[$__rate_interval]))', "{{instance}}")],
              "The worker's log has the file and the reason."),
        panel("Workers that answer", "none", [('sum(up{job="weft-worker"})', "up"), ('count(up{job="weft-worker"})', "known")],
              "By Prometheus' own scrapes."),
    ]),
])

DATA_PLANE = ("weft-data-plane", "Weft: data plane", [
    ("Transfers", [
        panel("Bytes from rank to rank", "Bps",
              [('sum by (tensor) (rate(weft_transfer_bytes_total{direction="sent"}[$__rate_interval]))', "{{tensor}}")],
              "Also between ranks of one process.", stack=True),
        panel("Sent by worker", "Bps",
              [('sum by (instance) (rate(weft_transfer_bytes_total{direction="sent"}[$__rate_interval]))', "{{instance}}")],
              "A rank that sends much more than the others may be the bottleneck."),
        panel("Read in the producer's memory", "Bps",
              [('sum by (instance) (rate(weft_transfer_in_place_bytes_total[$__rate_interval]))', "{{instance}}")],
              "Bytes that processes of one machine did not copy."),
        panel("Bytes between processes", "Bps",
              [('sum by (instance, direction) (rate(weft_transfer_process_bytes_total[$__rate_interval]))', "{{instance}} {{direction}}")],
              "Also those that are read in place."),
        panel("Tensors between processes", "ops",
              [('sum by (direction) (rate(weft_transfers_total[$__rate_interval]))', "{{direction}}")], "A second."),
    ]),
    ("Trouble", [
        panel("Silent links", "none", [('sum by (instance) (weft_silent_links)', "{{instance}}")],
              "Links on which a tensor is awaited and that answer no question."),
        panel("Bytes that peers have not released", "bytes", [('sum by (instance) (weft_transfer_held_bytes)', "{{instance}}")],
              "It stays low while peers read what they get."),
        panel("Dropped and stale messages", "ops",
              [('sum by (instance) (rate(weft_transfer_dropped_messages_total[$__rate_interval]))', "dropped {{instance}}"),
               ('sum by (instance) (rate(weft_fenced_total{job="weft-worker"}[$__rate_interval]))', "stale {{instance}}")],
              "They change nothing. Dropped: malformed, or from a stranger."),
        panel("Tensors sent or asked for again", "ops",
              [('sum by (instance, direction) (rate(weft_transfer_retries_total[$__rate_interval]))', "{{instance}} {{direction}}")],
              "sent: they had not arrived. received: they were late, perhaps because they were not made yet."),
        panel("Idle for transfers", "s",
              [('sum by (instance) (rate(weft_idle_seconds_total{cause="transfer"}[$__rate_interval]))', "{{instance}}")],
              "Idle seconds a second, of all ranks of a process."),
    ]),
])

DASHBOARDS = [FLEET, RUN, WORKER, DATA_PLANE]
SOURCE = {"type": "prometheus", "uid": "${source}"}


def panel_json(p, number_, x, y, height):
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    custom = {"fillOpacity": 30 if p["stack"] else 8, "lineWidth": 1, "showPoints": "never",
              "stacking": {"mode": "normal" if p["stack"] else "none"}}
    if p["kind"] == "stat":
        options, custom = {"colorMode": "none", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}}, {}
    return {
        "id": number_, "type": p["kind"], "title": p["title"], "description": p["description"], "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": p["width"], "h": height},
        "fieldConfig": {"defaults": {"unit": p["unit"], "custom": custom}, "overrides": []}, "options": options,
        "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
                    for i, (expr, legend) in enumerate(p["queries"])],
    }


def dashboard_json(uid, title, rows):
    panels, y = [], 0
    for row_title, row in rows:
        panels.append({"id": len(panels) + 1, "type": "row", "title": row_title, "collapsed": False,
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []})
        y, x = y + 1, 0
        height = 4 if row[0]["kind"] == "stat" else 8
        for p in row:
            if x + p["width"] > 24:
                x, y = 0, y + height
            panels.append(panel_json(p, len(panels) + 1, x, y, height))
            x += p["width"]
        y += height
    source = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    return {"uid": uid, "id": None, "title": title, "tags": ["weft"], "schemaVersion": 37, "version": 1, "editable": True,
            "timezone": "browser", "refresh": "10s", "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [source]}, "annotations": {"list": []}, "panels": panels,
            "links": [{"type": "dashboards", "title": "Weft", "tags": ["weft"], "asDropdown": True}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=str(pathlib.Path(__file__).resolve().parent / "dashboards"))
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    options = parser.parse_args()
    differ = []
    for uid, title, rows in DASHBOARDS:
        path = pathlib.Path(options.folder) / f"{uid}.json"
        text = json.dumps(dashboard_json(uid, title, rows), indent=1) + "\n"
        if options.check:
            if not path.exists() or path.read_text() != text:
                differ.append(str(path))
        else:
            path.write_text(text)
    if differ:
        sys.exit(f"not what make_dashboards.py writes: {', '.join(differ)}; run deploy/grafana/make_dashboards.py")


if __name__ == "__main__":
    main()
