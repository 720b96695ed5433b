#!/usr/bin/env python3
"""Fires every alert by a real fault of real daemons, which a real Prometheus scrapes: alerts_test.py BIN_DIR

Several small clusters run side by side, each with its own coordinator. One of them stays healthy, and none of its alerts may fire. A
fault befalls each of the others, and the alerts that this fault is for must fire at the daemon that it befell. An alert of the rules
file for which no fault is here fails the test.

Prometheus has the shipped rules, with each duration shortened: a minute becomes a second. A duration that the tables below do not
know fails the test. Prometheus scrapes and evaluates each second.

Needs Debian's prometheus (exits with 77 without it), etcd-server and curl. The alerts of a full disk need a mount namespace; where
none can be made, the test says loudly that they were not tried."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from daemons import SECONDS, TIME_FACTOR, eventually, free_port
from prometheus_server import PrometheusServer

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
RULES = SOURCE / "deploy/prometheus/weft.rules.yaml"
MINUTE = TIME_FACTOR  # seconds
SHORTENED = {"30s": MINUTE, "1m": MINUTE, "2m": 2 * MINUTE, "5m": 5 * MINUTE, "10m": 10 * MINUTE, "15m": 15 * MINUTE, "1h": 60 * MINUTE,
             "6h": 60 * MINUTE}  # the window of an average; no run here is older than a minute
# Numbers in expressions, of which some are seconds. A week stays a week: certificates are valid for days.
SHORTENED_NUMBERS = {"300": str(5 * MINUTE), "600": str(10 * MINUTE), "10": "10", "3600": str(60 * MINUTE), "86400": "86400"}


def shortened(rules):
    """Returns the rules with short durations in `expr` and `for`; fails at one that is unknown."""
    def duration(found):
        assert found[0] in SHORTENED, f"{RULES} has the duration {found[0]}; add it to SHORTENED"
        return f"{SHORTENED[found[0]]}s"

    def number(found):
        assert found[0] in SHORTENED_NUMBERS, f"{RULES} has the number {found[0]}; add it to SHORTENED_NUMBERS"
        return SHORTENED_NUMBERS[found[0]]

    def condition(found):
        numbers = re.sub(r"(?<![\w.])[1-9]\d+\b", number, found[0])
        return re.sub(r"\b\d+(?:ms|[smhdwy])\b", duration, numbers)

    return re.sub(r" expr:.*?(?= labels:)", condition, rules, flags=re.DOTALL)


def instance(cluster, daemon):
    return f"{cluster}/{daemon}"


class Cluster:
    """A coordinator and its workers w1, w2, .. on loopback."""

    def __init__(self, test, name, workers, coordinator=(), certificates=None, runs=1):
        self.test, self.name, self.folder, self.runs = test, name, test.folder / name, runs
        self.folder.mkdir()
        self.workers = [f"w{number + 1}" for number in range(workers)]
        self.metrics = {daemon: f"127.0.0.1:{free_port()}" for daemon in ["coordinator", *self.workers]}
        self.processes, self.logs = {}, {}
        self.socket = f"unix:{self.folder}/coordinator.sock"
        self.address, self.tls, listen = self.socket, (), ["--listen", self.socket]
        if certificates is not None:
            self.command("certs", "init", self.folder / "certs", "--days", str(certificates))
            self.address, self.tls = f"127.0.0.1:{free_port()}", ("--tls", self.folder / "certs/worker")
            listen += ["--listen", self.address, "--tls", self.folder / "certs/coordinator"]
        (self.folder / "text.txt").write_text("".join(f"the {i} of {i * i}; " for i in range(3000)))
        self.configuration = self.folder / "coordinator.yaml"
        self.configuration.write_text("history: 100\n")
        self.coordinator_flags = ["--config", self.configuration, *listen, "--output-root", self.folder, *coordinator]

    def start(self, before=()):
        """Starts the daemons, the coordinator behind the words `before`, and waits until the workers have joined."""
        self.start_coordinator(before)
        eventually(f"coordinator of {self.name}", lambda: self.ask("ls") is not None)
        for worker in self.workers:
            self.start_worker(worker)
        self.await_workers()

    def start_coordinator(self, before=()):
        self.run("coordinator", *before, self.test.bin / "weft-coordinator", *self.coordinator_flags, "--metrics",
                 self.metrics["coordinator"])

    def await_workers(self):
        count = len(self.workers) * self.runs
        eventually(f"workers of {self.name}", lambda: len(self.ask("workers") or []) == count)

    def start_worker(self, worker):
        self.run(worker, self.test.bin / "weft-worker", "--coordinator", self.address, *self.tls, "--name", worker, "--runs",
                 str(self.runs), "--metrics", self.metrics[worker])

    def run(self, name, *command, **how):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([str(word) for word in command], stdout=how.pop("stdout", log), stderr=log, **how)
        return self.processes[name]

    def signal(self, name, number):
        self.processes[name].send_signal(number)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self):
        for name in list(self.processes):
            self.kill(name)

    def command(self, *words):
        done = subprocess.run([self.test.bin / "weft", *words], capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"weft {words[0]} ({self.name}): {done.stderr}"
        return done.stdout

    def ask(self, *words):
        """Returns the answer to a question; None while nobody answers."""
        done = subprocess.run([self.test.bin / "weft", *words, "-o", "json", "--coordinator", self.socket], capture_output=True,
                              text=True, timeout=SECONDS)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def submit(self, stages=1, processes=1, steps=1_000_000, sgd="lr: 0.01", pool=(), width=32):
        """Submits a run and returns its number."""
        name = f"run{len(list(self.folder.glob('*.yaml'))) + 1}"
        path = self.folder / f"{name}.yaml"
        path.write_text(f"name: {name}\nmodel: {{gpt: {{layers: 4, width: {width}, heads: 2, context: 32}}}}\n"
                        "data: {text: {path: text.txt}}\n"
                        f"train: {{steps: {steps}, batch: 8, microbatches: 4, seed: 1, optimizer: {{sgd: {{{sgd}}}}}}}\n"
                        f"stages: {stages}\nschedule: 1f1b\nrestarts: 100\ncheckpoint: {{every: 20}}\n")
        said = self.command("submit", path, "--detach", "--processes", str(processes), *pool, "-o", "json", "--coordinator", self.socket)
        return str(json.loads(said)["run"])

    def state(self, run):
        return self.ask("describe", run) or {}

    def await_steps(self, run, steps=10):
        """Waits for so many steps more."""
        goal = self.state(run).get("steps_done", 0) + steps
        eventually(f"step {goal} of {self.name}", lambda: self.state(run).get("steps_done", 0) >= goal)

    def await_state(self, run, state):
        eventually(f"{self.name}: run {run} is {state}", lambda: self.state(run).get("state") == state)

    def fires(self, alert, daemon="coordinator"):
        self.test.fires(alert, instance(self.name, daemon))

    def is_firing(self, alert):
        return self.test.is_firing(alert, instance(self.name, "coordinator"))


# ---- the faults

def stop_a_peer(cluster):
    """A process of a run is stopped; the other one waits for its tensors."""
    run = cluster.submit(stages=4, processes=2)
    cluster.await_steps(run, 100)  # their average says what is long
    cluster.signal("w2", signal.SIGSTOP)
    cluster.fires("WeftLinkSilent", "w1")
    cluster.fires("WeftWorkerDown", "w2")
    cluster.fires("WeftTrainingStalled")
    cluster.fires("WeftRanksIdle", "w1")


def disturb_until(alert, cluster, runs, begin, end):
    """Has a fault befall the process that serves most of the runs, until they have lost it, again and again until the alert fires."""
    def disturb():
        served = {worker: {} for worker in cluster.workers}
        for run in runs:
            cluster.await_steps(run, 3)
            state = cluster.state(run)
            for worker in cluster.workers:
                if any(f"({worker}" in member for member in state.get("members", [])):
                    served[worker][run] = state.get("restarts", 0)
        worker = max(cluster.workers, key=lambda worker: len(served[worker]))
        begin(worker)
        for run, restarts in served[worker].items():
            eventually(f"a restart of run {run} of {cluster.name}", lambda: cluster.state(run).get("restarts", 0) > restarts)
        end(worker)
        cluster.await_workers()
        return cluster.is_firing(alert)

    eventually(alert, disturb)
    cluster.fires(alert)


def lose_workers(cluster):
    """Processes that serve three runs are killed and started again; then they are stopped for longer than their lease, and go on.

    Each process has a session for each run that it could serve. All of them come back after the lease, and each is one stale message: a
    process that could serve twelve runs fires the alert of more than ten by one stop, however slow the machine is."""
    runs = [cluster.submit(stages=2, processes=2) for _ in range(3)]
    for alert in ("WeftWorkersLost", "WeftRecoveryLoop"):
        disturb_until(alert, cluster, runs, cluster.kill, cluster.start_worker)
    disturb_until("WeftFencingSpike", cluster, runs, lambda worker: cluster.signal(worker, signal.SIGSTOP),
                  lambda worker: cluster.signal(worker, signal.SIGCONT))
    quarantine_a_job(cluster, runs)


def quarantine_a_job(cluster, runs):
    """The processes that take a run's first jobs, which take long, are killed one after the other."""
    for run in runs:
        cluster.command("cancel", run, "--coordinator", cluster.socket)
    run = cluster.submit(width=768)

    def kill_the_next():
        state = cluster.state(run)
        if state.get("state") != "running":
            return state.get("state") == "failed"
        worker = next(worker for worker in cluster.workers if f"({worker}" in state["members"][0])
        cluster.kill(worker)
        eventually(f"the loss of {worker}", lambda: cluster.state(run).get("state") != "running")
        cluster.start_worker(worker)
        return False

    eventually("a run that is not begun again", kill_the_next)
    assert "quarantined" in cluster.state(run)["reason"], cluster.state(run)["reason"]
    cluster.fires("WeftJobQuarantined")


def lose_the_outputs(cluster):
    """The folder of a run's outputs goes away: a file has its name."""
    run = cluster.submit()
    cluster.await_steps(run, 100)
    output = pathlib.Path(cluster.state(run)["out"])
    assert list(output.glob("checkpoint-*")), f"{output} has no checkpoint"
    aside = output.with_name("aside")
    output.rename(aside)
    output.touch()
    cluster.fires("WeftCheckpointTooOld")
    output.unlink()
    aside.rename(output)
    cluster.command("cancel", run, "--coordinator", cluster.socket)


def diverge(cluster):
    """A learning rate with which the loss is no number after some steps, in three runs."""
    for _ in range(3):
        cluster.await_state(cluster.submit(sgd="lr: 1000, weight_decay: 1000"), "failed")
    cluster.fires("WeftNonFiniteLoss")
    cluster.fires("WeftRunFailed")
    cluster.fires("WeftWorkerFailures", "w1")
    lose_the_outputs(cluster)


class Stranger:
    """A worker that is none of Weft: it says by hand what it likes, over curl's HTTP/2."""

    def __init__(self, cluster):
        self.protocol = int(re.search(r"kProtocolVersions{(\d+)", (SOURCE / "proto/session/protocol_versions.h").read_text())[1])
        self.said = 0
        self.curl = cluster.run("curl", "curl", "-sN", "--http2-prior-knowledge", "--unix-socket", cluster.socket.removeprefix("unix:"),
                                "-X", "POST", "-T", ".", "-H", "content-type: application/grpc", "-H", "te: trailers",
                                "http://localhost/weft.v1.Coordination/Session", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.write(self.field(1, self.field(1, self.protocol)))

    @staticmethod
    def varint(number):
        number &= (1 << 64) - 1
        low = bytearray()
        while number > 127:
            low.append(number & 127 | 128)
            number >>= 7
        return bytes(low) + bytes([number])

    def field(self, number, value):
        """Returns a field of a protobuf message: a number, or bytes."""
        if isinstance(value, int):
            return self.varint(number << 3) + self.varint(value)
        return self.varint(number << 3 | 2) + self.varint(len(value)) + value

    def write(self, message):
        self.curl.stdin.write(struct.pack(">BI", 0, len(message)) + message)
        self.curl.stdin.flush()

    def say(self, payload, content):
        self.said += 1
        self.write(self.field(3, self.said) + self.field(4, self.field(payload, content)))

    def hello(self, name, pool):
        self.say(1, self.field(1, name.encode()) + self.field(4, -1) + self.field(10, pool.encode()))

    def finished(self, run):
        self.say(7, self.field(1, int(run)))


def break_the_protocol(cluster):
    """A worker sends bytes that are no message; another one says that a run is finished before it has begun."""
    stranger = Stranger(cluster)
    stranger.hello("stranger", "strange")
    stranger.write(b"no message")
    cluster.fires("WeftProtocolViolation")
    eventually("its end", lambda: not cluster.is_firing("WeftProtocolViolation"))
    stranger = Stranger(cluster)
    stranger.hello("stranger", "strange")
    eventually("the stranger", lambda: any(worker["name"] == "stranger" for worker in cluster.ask("workers")))
    run = cluster.submit(pool=("--pool", "strange"))
    cluster.await_state(run, "preparing")
    stranger.finished(run)
    cluster.await_state(run, "failed")
    cluster.fires("WeftProtocolViolation")


def ask_for_too_much(cluster):
    """A run needs more processes than there are. The certificates are wrong, too: they end tomorrow, and a key is exchanged alone. And so
    is the configuration, which is read again."""
    cluster.submit(stages=2, processes=2)
    daemons = {"coordinator": "coordinator", "w1": "worker"}
    for daemon in daemons:
        cluster.fires("WeftCertificateExpires", daemon)
    cluster.command("certs", "init", cluster.folder / "other")
    for daemon, role in daemons.items():
        shutil.copy(cluster.folder / f"other/{role}/tls.key", cluster.folder / f"certs/{role}/tls.key")
        cluster.fires("WeftCertificateWrong", daemon)
    cluster.configuration.write_text("leese: 20\n")
    cluster.signal("coordinator", signal.SIGHUP)
    cluster.fires("WeftConfigurationRefused")
    cluster.fires("WeftQueueStuck")


def fill_the_disk(cluster):
    """The disk of the store is filled up, and, when the coordinator has given up what it had put aside, once more."""
    run = cluster.submit()
    cluster.await_steps(run)
    filler = open(f"/proc/{cluster.processes['coordinator'].pid}/root/{STORE_DISK}/filler", "ab", buffering=0)

    def fill():
        try:
            while True:
                filler.write(bytes(65536))
        except OSError:
            return True

    fill()
    cluster.fires("WeftStoreFull")
    eventually("a commit that fails", lambda: fill() and cluster.is_firing("WeftStoreFailing"))
    cluster.fires("WeftStoreFailing")
    filler.truncate(0)
    cluster.await_steps(run)


def slow_the_store(cluster):
    """The etcd that has the store is stopped for most of the time."""
    cluster.await_steps(cluster.submit())
    over = threading.Event()

    def stop_mostly():
        while not over.wait(0.05):
            cluster.signal("etcd", signal.SIGSTOP)
            over.wait(1)
            cluster.signal("etcd", signal.SIGCONT)

    stopping = threading.Thread(target=stop_mostly)
    stopping.start()
    try:
        cluster.fires("WeftStoreSlow")
    finally:
        over.set()
        stopping.join()


STORE_DISK = "mnt"
OWN_DISK = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c",
            f'mount -t tmpfs -o size=24m none /{STORE_DISK} && exec "$@"', "sh"]


class Alerts:
    """The clusters and the Prometheus that scrapes them."""

    def __init__(self, bin_dir, folder):
        self.bin, self.folder, self.prometheus, self.clusters = bin_dir, folder, None, []
        self.fired_by_faults, self.lock = set(), threading.Lock()
        self.has_disk = subprocess.run([*OWN_DISK, "true"], capture_output=True).returncode == 0

    def cluster(self, *arguments, **how):
        self.clusters.append(Cluster(self, *arguments, **how))
        return self.clusters[-1]

    def start(self):
        """Starts all daemons, then Prometheus, and returns each cluster whose fault is to be made, with that fault."""
        patient = ["--lease", "10000", "--grace", "10000"]  # a process that is stopped is not lost
        self.healthy = self.cluster("healthy", 1, ["--store", self.folder / "healthy/store"], certificates=365)
        etcd = free_port(), free_port()
        faults = {self.cluster("stopped", 2, patient): stop_a_peer,
                  self.cluster("losing", 2, ["--lease", "5"], runs=12): lose_workers,
                  self.cluster("diverging", 1): diverge,
                  self.cluster("strange", 0): break_the_protocol,
                  self.cluster("waiting", 1, certificates=1): ask_for_too_much,
                  self.cluster("slow", 1, ["--store", f"etcd://127.0.0.1:{etcd[0]}/alerts"]): slow_the_store}
        if self.has_disk:
            faults[self.cluster("full", 1, ["--store", f"/{STORE_DISK}/store"])] = fill_the_disk
        slow = next(cluster for cluster in faults if cluster.name == "slow")
        urls = [f"http://127.0.0.1:{port}" for port in etcd]
        slow.run("etcd", "/usr/bin/etcd", "--data-dir", slow.folder / "etcd", "--listen-client-urls", urls[0], "--advertise-client-urls",
                 urls[0], "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", f"default={urls[1]}")
        for cluster in self.clusters:
            cluster.start(OWN_DISK if cluster.name == "full" else ())
        self.start_prometheus()
        return faults

    def start_prometheus(self):
        (self.folder / RULES.name).write_text(shortened(RULES.read_text()))
        targets = {"weft-coordinator": [], "weft-worker": []}
        for cluster in self.clusters:
            for daemon, address in cluster.metrics.items():
                job = "weft-coordinator" if daemon == "coordinator" else "weft-worker"
                targets[job].append({"targets": [address], "labels": {"instance": instance(cluster.name, daemon)}})
        jobs = [{"job_name": job, "static_configs": of} for job, of in targets.items()]
        self.prometheus = PrometheusServer(self.folder, json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [RULES.name], "scrape_configs": jobs}))
        count = sum(len(of) for of in targets.values())
        # Twice: an increase needs a value before it.
        eventually("Prometheus", lambda: len(self.prometheus.series("count_over_time(up[1m]) > 1 and up == 1") or []) == count)

    def stop(self):
        for cluster in self.clusters:
            cluster.stop()
        if self.prometheus is not None:
            self.prometheus.stop()

    def is_firing(self, alert, where):
        return (alert, where) in self.prometheus.firing()

    def fires(self, alert, where):
        eventually(f"{alert} at {where}", lambda: self.is_firing(alert, where))
        with self.lock:
            self.fired_by_faults.add(alert)
            print(f"ok  {alert} fires{where and ' at ' + where}", flush=True)

    def lose_the_leaders(self, standing_by):
        """All coordinators are killed, with the etcd of one of them; that one is started again, and cannot lead. Then it is killed too."""
        standing_by.kill("etcd")
        for cluster in self.clusters:
            cluster.kill("coordinator")
        standing_by.start_coordinator()
        self.fires("WeftNoLeader", "")
        standing_by.kill("coordinator")
        self.fires("WeftNoCoordinator", "")

    @staticmethod
    def make(fault, cluster):
        try:
            fault(cluster)
        except Exception:
            print(f"{cluster.name}: the fault or its alert failed; the coordinator's log ends so:\n"
                  f"{(cluster.folder / 'coordinator.log').read_text()[-3000:]}", flush=True)
            raise

    def check(self):
        faults = self.start()
        alerts = set(self.prometheus.check_rules())
        finished = self.healthy.submit(steps=20)
        self.healthy.await_state(finished, "finished")
        trains, waits = self.healthy.submit(), self.healthy.submit()
        with concurrent.futures.ThreadPoolExecutor(len(faults)) as threads:
            for done in [threads.submit(self.make, fault, cluster) for cluster, fault in faults.items()]:
                done.result()
        assert self.healthy.state(trains)["state"] == "running" and self.healthy.state(waits)["state"] == "waiting"
        fired = self.prometheus.series('max_over_time(ALERTS{alertstate="firing", instance=~"healthy/.*"}[1h])')
        assert fired == [], f"alerts fired on a healthy cluster: {[series['metric'] for series in fired]}"
        print("ok  none fires at the healthy cluster", flush=True)
        self.lose_the_leaders(next(cluster for cluster in faults if cluster.name == "slow"))
        if not self.has_disk:
            print("NOT TESTED: WeftStoreFull and WeftStoreFailing, because no mount namespace can be made here")
            alerts -= {"WeftStoreFull", "WeftStoreFailing"}
        assert self.fired_by_faults == alerts, f"no fault fired {alerts - self.fired_by_faults}"
        print(f"ok  a fault has fired each of {len(alerts)} alerts")


def main():
    PrometheusServer.skip_without("the alerts were")
    assert os.path.exists("/usr/bin/etcd"), "etcd does not start; Debian has it in the package etcd-server"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        alerts = Alerts(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(name))
        try:
            alerts.check()
        finally:
            alerts.stop()
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
