#!/usr/bin/env python3
"""Asks a real Prometheus, which scrapes real daemons that train, every question of the dashboards: dashboards_test.py BIN_DIR

Each query of each dashboard must return at least one series; the rules must load, and none of their alerts may fire while the fleet
is healthy (alerts_test.py makes each of them fire). Needs Debian's prometheus; exits with 77 without it."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from daemons import SECONDS, eventually, free_port
from prometheus_server import PrometheusServer

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
RUN = """name: dashboards
model: {gpt: {layers: 2, width: 32, heads: 2, context: 32}}
data: {text: {path: text.txt}}
train: {steps: 20000, batch: 8, microbatches: 4, seed: 1, clip_norm: 1.0, optimizer: {adamw: {lr: 1.0e-3}}}
stages: 4
schedule: 1f1b
checkpoint: {every: 100}
"""


class Fleet:
    """A coordinator with a store, two workers with certificates, and a Prometheus, on loopback."""

    def __init__(self, bin_dir, folder):
        self.bin, self.folder, self.processes = bin_dir, folder, {}
        metrics = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        subprocess.run([bin_dir / "weft", "certs", "init", folder / "certs"], check=True, capture_output=True, timeout=SECONDS)
        self.address, secured = f"unix:{folder}/coordinator.sock", f"127.0.0.1:{free_port()}"
        self.start("coordinator", bin_dir / "weft-coordinator", "--listen", self.address, "--listen", secured, "--tls",
                   folder / "certs/coordinator", "--metrics", metrics[0], "--store", folder / "store", "--output-root", folder)
        for number in (1, 2):
            self.start(f"worker {number}", bin_dir / "weft-worker", "--coordinator", secured, "--tls", folder / "certs/worker", "--name",
                       f"w{number}", "--metrics", metrics[number])
        shutil.copy(SOURCE / "deploy/prometheus/weft.rules.yaml", folder)
        config = (SOURCE / "deploy/prometheus/prometheus.yaml").read_text()
        for number, usual in enumerate(("127.0.0.1:9100", "127.0.0.1:9101", "127.0.0.1:9102")):
            assert usual in config
            config = config.replace(usual, metrics[number])
        self.prometheus = PrometheusServer(folder, re.sub(r"_interval: 5s", "_interval: 1s", config))

    def start(self, name, *command):
        log = open(self.folder / f"{name}.log", "wb")
        self.processes[name] = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)

    def stop(self):
        self.prometheus.stop()
        for process in self.processes.values():
            process.kill()
            process.wait()

    def series(self, query):
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} has ended: {(self.folder / f'{name}.log').read_text()[-2000:]}"
        return self.prometheus.series(query)


def queries():
    for path in sorted((SOURCE / "deploy/grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.stem}, {panel['title']}", target["expr"].replace("$__rate_interval", "15s")


def main():
    PrometheusServer.skip_without("the dashboards were")
    bin_dir = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("".join(f"the {i} of {i * i}; " for i in range(3000)))
        (folder / "run.yaml").write_text(RUN)
        fleet = Fleet(bin_dir, folder)
        try:
            eventually("Prometheus", lambda: fleet.series("up"))
            submitted = subprocess.run([bin_dir / "weft", "submit", folder / "run.yaml", "--detach", "--processes", "2",
                                        "--coordinator", fleet.address], capture_output=True, text=True, timeout=SECONDS)
            assert submitted.returncode == 0, submitted.stderr
            eventually("a step", lambda: fleet.series("rate(weft_steps_total[15s]) > 0"))
            asked = 0
            for where, query in queries():
                eventually(f"{where}: {query}", lambda query=query: fleet.series(query))
                asked += 1
            print(f"ok  {asked} queries of the dashboards return series")
            alerts = fleet.prometheus.check_rules()
            assert fleet.prometheus.firing() == [], f"alerts fire on a healthy fleet: {fleet.prometheus.firing()}"
            print(f"ok  {len(alerts)} alerts are loaded, and none fires")
        finally:
            fleet.stop()


if __name__ == "__main__":
    main()
