#!/usr/bin/env python3
"""Runs the containers of Kubeflow's runtime (deploy/kubernetes/kubeflow) on this machine: kubeflow_test.py BIN_DIR

Their commands are those of the file, with other paths and a free port. A stand-in for Kubeflow's Trainer takes the status, over
HTTPS with a token. The run must have the weights of the plain loop: of a job that ends by itself, and of one whose pod is told to
end, and that begins again; and the last status must say so. A Trainer that answers with failures must harm nothing. The status is
also held against Kubeflow's own model where Python has kubeflow-trainer-api. Needs PyYAML; exits with 77 without it."""
import http.server
import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from daemons import TIME_FACTOR, free_port

SECONDS = 180 * TIME_FACTOR
RUNTIME = pathlib.Path(__file__).resolve().parent.parent.parent / "deploy/kubernetes/kubeflow/runtime.yaml"
RUN = """name: batch
model: {{gpt: {{layers: 2, width: 16, heads: 2, context: 8}}}}
data: {{text: {{path: text.txt}}}}
validate: {{data: {{text: {{path: text.txt}}}}, every: 10, samples: 8}}
train: {{steps: {steps}, batch: 4, microbatches: 4, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}
checkpoint: {{every: 50}}
stages: 2
schedule: 1f1b
"""


class Trainer:
    """A stand-in for the part of Kubeflow's Trainer that takes the status of a job."""

    def __init__(self, certificates, answer=200):
        self.requests, trainer = [], self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                trainer.requests.append((self.path, self.headers["Authorization"], self.headers["Content-Type"], json.loads(body)))
                self.send_response(answer)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self):
        return f"https://localhost:{self.server.server_port}/apis/trainer.kubeflow.org/v1alpha1/namespaces/n/trainjobs/batch/status"


class Job:
    """The pods of one TrainJob with two nodes."""

    def __init__(self, bin_dir, folder):
        import yaml
        self.bin, self.folder = bin_dir, folder
        jobs = yaml.safe_load(RUNTIME.read_text())["spec"]["template"]["spec"]["replicatedJobs"]
        self.containers = {j["name"]: j["template"]["spec"]["template"]["spec"]["containers"][0] for j in jobs}
        subprocess.run([bin_dir / "weft", "certs", "init", folder / "certs", "--host", "localhost"], check=True, capture_output=True)
        (folder / "token").write_text("a-token\n")
        self.pods = []

    def prepare(self, name, steps):
        self.run = self.folder / name
        self.run.mkdir()
        (self.run / "text.txt").write_text("the loom and the shuttle and the thread of the weft\n" * 400)
        (self.run / "run.yaml").write_text(RUN.format(steps=steps))

    def start(self, trainer):
        port, metrics = free_port(), free_port()
        certificates = self.folder / "certs"
        replaced = {"/etc/weft/coordinator": str(certificates / "coordinator"), "/etc/weft/submitter": str(certificates / "submitter"),
                    "/etc/weft/tls": str(certificates / "worker"), "0.0.0.0:7070": f"127.0.0.1:{port}", "127.0.0.1:7070": f"127.0.0.1:{port}",
                    "$(TRAIN_JOB)-coordinator-0-0.$(TRAIN_JOB):7070": f"127.0.0.1:{port}", "0.0.0.0:9101": f"127.0.0.1:{metrics}"}
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "WEFT_RUN_FOLDER": str(self.run)}
        status = {"KUBEFLOW_TRAINER_STATUS_URL": trainer.url(), "KUBEFLOW_TRAINER_STATUS_TOKEN": str(self.folder / "token"),
                  "KUBEFLOW_TRAINER_STATUS_CA_CERT": str(certificates / "coordinator" / "ca.crt")}

        def pod(container, number):
            command = [*container["command"], *container["args"]]
            for old, new in replaced.items():
                command = [word.replace(old, new) for word in command]
            replaced["0.0.0.0:9101"] = f"127.0.0.1:{free_port()}"
            log = open(self.folder / f"{container['name']}-{number}.log", "ab")
            return subprocess.Popen(command, env={**environment, **status}, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

        self.pods = [pod(self.containers["coordinator"], 0), *(pod(self.containers["node"], i) for i in range(2))]
        return self.pods[0]

    def end(self):
        for pod in self.pods:
            pod.kill()
            pod.wait()

    def check_weights(self):
        subprocess.run([self.bin / "weft", "train", self.run / "run.yaml", "--reference", "--out", self.run / "plain"], check=True,
                       capture_output=True)
        weights = sorted((self.run / "plain" / "checkpoint").glob("*.safetensors"))
        assert weights
        for path in weights:
            assert (self.run / "out" / "checkpoint" / path.name).read_bytes() == path.read_bytes(), path.name


def check_status(request, steps):
    path, authorization, kind, body = request
    assert path.endswith("/namespaces/n/trainjobs/batch/status") and authorization == "Bearer a-token" and kind == "application/json"
    status = body["trainerStatus"]
    metrics = {m["name"]: m["value"] for m in status["metrics"]}
    assert status["progressPercentage"] == 100 * int(metrics["step"]) // steps and metrics["steps"] == str(steps), body
    assert all(isinstance(v, str) for v in metrics.values()) and status["lastUpdatedTime"].endswith("Z"), body
    try:
        from kubeflow_trainer_api import models
        models.TrainerV1alpha1UpdateTrainJobStatusRequest.model_validate(body)
    except ImportError:
        print("note: without the Python package kubeflow-trainer-api, no status was held against Kubeflow's model", file=sys.stderr)
    return status, metrics


def finished_job(job, certificates):
    trainer = Trainer(certificates)
    job.prepare("finished", 40)
    assert job.start(trainer).wait(timeout=SECONDS) == 0
    job.end()
    job.check_weights()
    status, metrics = check_status(trainer.requests[-1], 40)
    assert status["progressPercentage"] == 100 and float(metrics["loss"]) > 0 and float(metrics["validation_loss"]) > 0, metrics


def ended_job(job, certificates):
    """The pod is told to end, as when Kueue preempts the job; it begins again, and a Trainer that fails is borne."""
    trainer = Trainer(certificates, answer=500)
    job.prepare("ended", 1500)
    coordinator = job.start(trainer)
    steps = job.run / "out" / "steps.jsonl"
    until = time.monotonic() + SECONDS
    while not steps.exists() or steps.read_text().count("\n") < 20:
        assert time.monotonic() < until and coordinator.poll() is None, "the job makes no steps"
        time.sleep(0.1)
    coordinator.send_signal(signal.SIGTERM)
    assert coordinator.wait(timeout=SECONDS) != 0, "the job has not been done"
    job.end()
    made = steps.read_text().count("\n")
    assert 20 <= made < 1500, made
    assert job.start(trainer).wait(timeout=SECONDS) == 0
    job.end()
    job.check_weights()
    assert trainer.requests
    log = (job.folder / "coordinator-0.log").read_text()
    assert log.count("Kubeflow is not told how far the training is: https://localhost") == 2, "once for each start"


def main():
    try:
        import yaml  # noqa: F401
    except ImportError:
        print("SKIPPED: the containers of Kubeflow's runtime were not run: it takes PyYAML", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory(prefix="weft_kubeflow_") as name:
        folder = pathlib.Path(name)
        job = Job(pathlib.Path(sys.argv[1]).absolute(), folder)
        if shutil.which("shellcheck"):
            script = folder / "coordinator.sh"
            script.write_text("#!/usr/bin/env bash\n" + job.containers["coordinator"]["args"][0])
            subprocess.run(["shellcheck", script], check=True)
        try:
            finished_job(job, folder / "certs" / "coordinator")
            ended_job(job, folder / "certs" / "coordinator")
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"---- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
            raise
        finally:
            job.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
