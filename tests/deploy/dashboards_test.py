#!/usr/bin/env python3
"""Asks a real Prometheus, which scrapes real daemons that train, every question of the dashboards: dashboards_test.py BIN_DIR

Each query of each dashboard must return at least one series; the rules must load, and none of their alerts may fire while the fleet
is healthy. When the coordinator is killed, WeftNoCoordinator must. Needs Debian's prometheus; exits with 77 without it."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS = 120 * int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))
RUN = """name: dashboards
model: {gpt: {layers: 2, width: 32, heads: 2, context: 32}}
data: {text: {path: text.txt}}
train: {steps: 20000, batch: 8, microbatches: 4, seed: 1, clip_norm: 1.0, optimizer: {adamw: {lr: 1.0e-3}}}
stages: 4
schedule: 1f1b
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Fleet:
    """A coordinator with a store, two workers, and a Prometheus, on loopback."""

    def __init__(self, bin_dir, folder):
        self.bin, self.folder, self.processes = bin_dir, folder, {}
        self.ports = [free_port() for _ in range(4)]
        metrics = [f"127.0.0.1:{port}" for port in self.ports]
        self.address, self.prometheus = f"unix:{folder}/coordinator.sock", f"http://{metrics[3]}"
        self.start("coordinator", bin_dir / "weft-coordinator", "--listen", self.address, "--metrics", metrics[0], "--store",
                   folder / "store", "--output-root", folder)
        for number in (1, 2):
            self.start(f"worker {number}", bin_dir / "weft-worker", "--coordinator", self.address, "--name", f"w{number}",
                       "--metrics", metrics[number])
        shutil.copy(SOURCE / "deploy/prometheus/weft.rules.yaml", folder)
        config = (SOURCE / "deploy/prometheus/prometheus.yaml").read_text()
        for number, usual in enumerate(("127.0.0.1:9100", "127.0.0.1:9101", "127.0.0.1:9102")):
            assert usual in config
            config = config.replace(usual, metrics[number])
        (folder / "prometheus.yaml").write_text(re.sub(r"_interval: 5s", "_interval: 1s", config))
        self.start("prometheus", "prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/tsdb",
                   f"--web.listen-address={metrics[3]}")

    def start(self, name, *command):
        log = open(self.folder / f"{name}.log", "wb")
        self.processes[name] = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def ask(self, path, **parameters):
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} has ended: {(self.folder / f'{name}.log').read_text()[-2000:]}"
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:  # a query that is no PromQL
            raise AssertionError(f"{url}: {refused.read().decode()}") from refused
        except (urllib.error.URLError, ConnectionError):  # it does not listen yet
            return None

    def await_answer(self, what, ask):
        until = time.monotonic() + SECONDS
        while True:
            answer = ask()
            if answer:
                return answer
            assert time.monotonic() < until, f"{what}: nothing after {SECONDS} s"
            time.sleep(0.5)

    def series(self, query):
        answer = self.ask("query", query=query)
        return answer and answer["result"]

    def firing(self):
        answer = self.ask("alerts") or {"alerts": []}
        return sorted(alert["labels"]["alertname"] for alert in answer["alerts"] if alert["state"] == "firing")


def queries():
    for path in sorted((SOURCE / "deploy/grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.stem}, {panel['title']}", target["expr"].replace("$__rate_interval", "15s")


def main():
    if not shutil.which("prometheus"):
        print("SKIPPED: the dashboards were not tried: there is no prometheus (Debian: prometheus)")
        sys.exit(77)
    bin_dir = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("".join(f"the {i} of {i * i}; " for i in range(3000)))
        (folder / "run.yaml").write_text(RUN)
        fleet = Fleet(bin_dir, folder)
        try:
            fleet.await_answer("Prometheus", lambda: fleet.series("up"))
            submitted = subprocess.run([bin_dir / "weft", "submit", folder / "run.yaml", "--detach", "--processes", "2",
                                        "--coordinator", fleet.address], capture_output=True, text=True, timeout=SECONDS)
            assert submitted.returncode == 0, submitted.stderr
            fleet.await_answer("a step", lambda: fleet.series("rate(weft_steps_total[15s]) > 0"))
            asked = 0
            for where, query in queries():
                fleet.await_answer(f"{where}: {query}", lambda query=query: fleet.series(query))
                asked += 1
            print(f"ok  {asked} queries of the dashboards return series")
            rules = fleet.ask("rules")["groups"]
            unhealthy = [rule["name"] for group in rules for rule in group["rules"] if rule["health"] == "err"]
            assert rules and not unhealthy, f"rules with errors: {unhealthy}"
            assert fleet.firing() == [], f"alerts fire on a healthy fleet: {fleet.firing()}"
            print(f"ok  {sum(len(group['rules']) for group in rules)} alerts are loaded, and none fires")
            fleet.processes.pop("coordinator").kill()
            fleet.await_answer("WeftNoCoordinator", lambda: "WeftNoCoordinator" in fleet.firing())
            print("ok  WeftNoCoordinator fires when the coordinator is killed")
        finally:
            fleet.stop()


if __name__ == "__main__":
    main()
