#!/usr/bin/env python3
"""Tries the units of systemd and what the daemons tell it: service_test.py BIN_DIR

1. `systemd-analyze verify` has nothing to say about the units, and `systemd-analyze security` rates how exposed they are: at most 1.5
   for the coordinator, 2.0 for workers. Without systemd that is skipped, in one loud line.
2. The real daemons, started as a unit of Type=notify with a watchdog: they say that they are ready, ping, and say that they stop.
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

UNITS = pathlib.Path(__file__).resolve().parent.parent.parent / "deploy" / "systemd"
EXPOSED = {"weft-coordinator.service": 15, "weft-worker@.service": 20}  # tenths
SECONDS = 60 * int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))


def check_units(bin_dir, folder):
    if not shutil.which("systemd-analyze"):
        print("SKIPPED: the units were not verified: there is no systemd-analyze (Debian: systemd)")
        return
    for unit in UNITS.iterdir():  # systemd asks whether the programs and documents that a unit names are there
        text = unit.read_text().replace("/usr/bin/", f"{bin_dir}/")
        (folder / unit.name).write_text(text)
    units = [str(folder / name) for name in [*EXPOSED, "weft.target"]]
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    said = [line for line in verified.stderr.splitlines() if "weft" in line]
    assert verified.returncode == 0 and not said, f"systemd-analyze verify: {verified.stderr}"
    for name, most in EXPOSED.items():
        rated = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--threshold={most}", str(folder / name)],
                               capture_output=True, text=True)
        assert rated.returncode == 0, f"{name} is more exposed than {most / 10}:\n{rated.stdout[-2000:]}"
        print(f"ok  {name}: {rated.stdout.strip().splitlines()[-1].strip()}")


class Manager:
    """The service manager's end of the notices."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(SECONDS)
        self.environment = dict(os.environ, NOTIFY_SOCKET=str(path), WATCHDOG_USEC="400000")

    def await_notice(self, assignment):
        """Returns the status of the next notice with that assignment."""
        while True:
            lines = self.socket.recv(4096).decode().split("\n")
            if assignment in lines:
                return next((line[len("STATUS="):] for line in lines if line.startswith("STATUS=")), "")

    def start(self, *command):
        return subprocess.Popen([str(word) for word in command], env=self.environment, stderr=subprocess.DEVNULL)


def check_notices(bin_dir, folder):
    address = f"unix:{folder}/coordinator.sock"
    managers = {name: Manager(folder / f"{name}.notify") for name in ("coordinator", "worker")}
    coordinator = managers["coordinator"].start(bin_dir / "weft-coordinator", "--listen", address, "--output-root", folder)
    worker = None
    try:
        status = managers["coordinator"].await_notice("READY=1")
        assert status == f"listening on {address}", status
        assert (folder / "coordinator.sock").exists(), "it is ready and does not listen"
        worker = managers["worker"].start(bin_dir / "weft-worker", "--coordinator", address, "--name", "w")
        status = managers["worker"].await_notice("READY=1")
        assert status == f"for the coordinator at {address}", status
        for name, process in (("worker", worker), ("coordinator", coordinator)):
            for _ in range(3):
                managers[name].await_notice("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            managers[name].await_notice("STOPPING=1")
            assert process.wait(SECONDS) == 0, f"the {name} ended with {process.returncode}"
        print("ok  both daemons say READY, ping the watchdog, say STOPPING, and end with 0")
    finally:
        for process in (worker, coordinator):
            if process is not None and process.poll() is None:
                process.kill()


def check_bad_environment(bin_dir):
    for program in ("weft-coordinator", "weft-worker"):
        refused = subprocess.run([bin_dir / program, *(["--coordinator", "unix:/nowhere"] if "worker" in program else [])],
                                 env=dict(os.environ, NOTIFY_SOCKET="nowhere"), capture_output=True, text=True, timeout=SECONDS)
        assert refused.returncode == 78 and 'NOTIFY_SOCKET to "nowhere"' in refused.stderr, refused
    print("ok  a NOTIFY_SOCKET that is no path is refused with 78")


def main():
    bin_dir = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        check_units(bin_dir, pathlib.Path(folder))
        check_notices(bin_dir, pathlib.Path(folder))
        check_bad_environment(bin_dir)


if __name__ == "__main__":
    main()
