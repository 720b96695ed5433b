"""Worker processes of a coordinator that stay, and train many runs one after the other.

A worker starts once, where each `weft train` starts workers of its own, and most of a short run's time is that start.
"""

import os
import pathlib
import subprocess
import time

LIMIT = 600 * int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))  # seconds for a run


class StandingWorkers:
    """A coordinator with so many workers. Leaving its context ends them; an error if one of them does not end well, or has ended before."""

    def __init__(self, bins, folder, count, *flags):
        self.bins, self.folder, self.count, self.flags = pathlib.Path(bins), pathlib.Path(folder) / "standing", count, flags
        self.address, self.processes = f"unix:{self.folder / 'coordinator.sock'}", []

    def __enter__(self):
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def begin(self):
        self.folder.mkdir()
        self.start("coordinator", "weft-coordinator", "--listen", self.address, "--output-root", self.folder)
        until = time.monotonic() + LIMIT
        while subprocess.run([self.bins / "weft", "ls", "--coordinator", self.address], capture_output=True, check=False).returncode != 0:
            if time.monotonic() > until or self.processes[0][1].poll() is not None:
                raise RuntimeError(f"no coordinator: {self.log_of('coordinator')}")
            time.sleep(0.05)
        for number in range(self.count):
            self.start(f"worker-{number}", "weft-worker", "--coordinator", self.address, "--name", f"worker-{number}", *self.flags)

    def end(self):
        # The workers first: they look for their coordinator as long as it is not there.
        for _, process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __exit__(self, *_):
        lost = [name for name, process in self.processes if process.poll() is not None]
        self.end()
        lost += [name for name, process in self.processes if process.returncode != 0]
        if lost:
            raise RuntimeError(f"{lost[0]} has ended: {self.log_of(lost[0])}")

    def start(self, name, program, *arguments):
        with open(self.folder / f"{name}.log", "w") as log:
            # No daemon outlives this program, however it ends.
            self.processes.append((name, subprocess.Popen(["setpriv", "--pdeathsig", "KILL", self.bins / program, *arguments],
                                                          stdin=subprocess.DEVNULL, stdout=log, stderr=log)))

    def log_of(self, name):
        return (self.folder / f"{name}.log").read_text()[-2000:]

    def train(self, file, out, arguments):
        """Trains the run as `weft train` would; returns the exit code, and what was said."""
        done = subprocess.run([self.bins / "weft", "submit", str(file), "--overwrite", "--out", str(out), *arguments, "--coordinator",
                               self.address], capture_output=True, text=True, timeout=LIMIT, check=False)
        return done.returncode, done.stderr
