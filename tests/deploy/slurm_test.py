#!/usr/bin/env python3
"""Trains by the script of `weft slurm`, under stand-ins for srun and scontrol that start its tasks on this machine:
slurm_test.py BIN_DIR

The run must have the weights of the plain loop: of a job that ends by itself; and of one that Slurm ends with its signal, requeues,
and begins again. shellcheck, where it is installed, must find nothing in the script."""
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

SECONDS = 180 * int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))
RUN = """name: batch
model: {{gpt: {{layers: 2, width: 16, heads: 2, context: 8}}}}
data: {{text: {{path: text.txt}}}}
train: {{steps: {steps}, batch: 4, microbatches: 4, seed: 1, optimizer: {{adamw: {{lr: 1.0e-3}}}}}}
checkpoint: {{every: 50}}
stages: 2
schedule: 1f1b
"""
# Starts as many copies of the command as there are tasks, and passes on the signal that ends it.
SRUN = """#!/usr/bin/env bash
tasks=1 nodes=1
while [[ $1 == --* ]]; do
  case $1 in
    --ntasks=* | --ntasks-per-node=*) tasks=${1#*=} ;;
    --nodes=*) nodes=${1#*=} ;;
  esac
  shift
done
pids=()
for ((i = 0; i < tasks * nodes; ++i)); do
  SLURM_PROCID=$i "$@" &
  pids+=($!)
done
trap 'kill "${pids[@]}" 2>/dev/null' TERM
code=0
for pid in "${pids[@]}"; do
  while kill -0 "$pid" 2>/dev/null; do wait "$pid" || code=$?; done
done
exit $code
"""
# Names the hosts of a large job, more than a pipe holds. Only the first takes part: srun starts all tasks here.
SCONTROL = """#!/usr/bin/env bash
case $1 in
  show) echo 127.0.0.1 && printf 'host-%06d.of.a.large.job\\n' {1..5000} ;;
  requeue) echo "$2" >>"$REQUEUED" ;;
esac
"""


class Cluster:
    def __init__(self, bin_dir, folder):
        self.bin, self.folder = bin_dir, folder
        tools = folder / "tools"
        tools.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (tools / name).write_text(text)
            (tools / name).chmod(stat.S_IRWXU)
        self.requeued = folder / "requeued"
        self.environment = {**os.environ, "PATH": f"{tools}:{bin_dir}:{os.environ['PATH']}", "REQUEUED": str(self.requeued),
                            "SLURM_JOB_NODELIST": "node", "SLURM_JOB_ID": "7"}
        (folder / "text.txt").write_text("the loom and the shuttle and the thread of the weft\n" * 400)

    def script(self, steps):
        (self.folder / "run.yaml").write_text(RUN.format(steps=steps))
        self.out = self.folder / f"it's out {steps}"
        script = self.folder / "job.sh"
        command = [self.bin / "weft", "slurm", self.folder / "run.yaml", "--out", self.out, "--sbatch=--time=1"]
        script.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert "#SBATCH --time=1\n" in script.read_text() and "#SBATCH --ntasks-per-node=2\n" in script.read_text()
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", script], check=True)
        return script

    def start(self, script, restarts=0):
        log = open(self.folder / "job.log", "ab")
        return subprocess.Popen(["bash", script], env={**self.environment, "SLURM_RESTART_COUNT": str(restarts)}, stdout=log, stderr=log,
                                stdin=subprocess.DEVNULL)

    def check(self):
        """Compares the weights with those of the plain loop."""
        reference = self.folder / "reference"
        shutil.rmtree(reference, ignore_errors=True)
        subprocess.run([self.bin / "weft", "train", self.folder / "run.yaml", "--reference", "--out", reference], check=True,
                       capture_output=True)
        weights = [p for p in sorted((reference / "checkpoint").glob("*.safetensors"))]
        assert weights
        for path in weights:
            assert (self.out / "checkpoint" / path.name).read_bytes() == path.read_bytes(), path.name


def finished_job(cluster):
    job = cluster.start(cluster.script(30))
    assert job.wait(timeout=SECONDS) == 0
    assert not cluster.requeued.exists()
    cluster.check()


def ended_job(cluster):
    script = cluster.script(2000)
    job = cluster.start(script)
    steps = cluster.out / "steps.jsonl"
    until = time.monotonic() + SECONDS
    while not steps.exists() or steps.read_text().count("\n") < 20:
        assert time.monotonic() < until and job.poll() is None, "the job makes no steps"
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)  # as --signal=B:TERM has it
    assert job.wait(timeout=SECONDS) == 0
    assert cluster.requeued.read_text() == "7\n"
    made = steps.read_text().count("\n")
    assert 20 <= made < 2000, made
    assert cluster.start(script, restarts=1).wait(timeout=SECONDS) == 0
    assert cluster.requeued.read_text() == "7\n"
    cluster.check()


def main():
    with tempfile.TemporaryDirectory(prefix="weft_slurm_") as name:
        cluster = Cluster(pathlib.Path(sys.argv[1]).absolute(), pathlib.Path(name))
        try:
            finished_job(cluster)
            ended_job(cluster)
        except BaseException:
            for log in [*cluster.folder.glob("*.log"), *cluster.folder.glob("*/*.log")]:
                print(f"---- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
