"""Daemons that a test starts on loopback, and what such tests need besides."""
import contextlib
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from free_ports import free_port  # noqa: E402,F401

TIME_FACTOR = int(os.environ.get("WEFT_TEST_TIME_FACTOR", "1"))
SECONDS = 120 * TIME_FACTOR


def eventually(what, ask):
    """Returns the first answer that is true."""
    until = time.monotonic() + SECONDS
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < until, f"{what}: nothing after {SECONDS} s"
        time.sleep(0.2)


class Daemons:
    """Programs of the folder `bin`, which end with the test and write PROGRAM.log into `folder`."""

    def __init__(self, bin_dir, folder):
        self.bin, self.folder, self.processes = bin_dir, folder, []

    def start(self, program, *arguments):
        command = ["setpriv", "--pdeathsig", "KILL", self.bin / program, *arguments]
        with open(self.folder / f"{program}.log", "ab") as log:
            self.processes.append(subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    @contextlib.contextmanager
    def until_the_end(self):
        """Kills them at the end of the block; shows their logs if it fails."""
        try:
            yield self
        except BaseException:
            for log in self.folder.glob("*.log"):
                print(f"---- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
            raise
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
