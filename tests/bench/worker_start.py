#!/usr/bin/env python3
"""Start time and resident memory of weft-worker on the CPU, of one build or of several in turn.

    tests/bench/worker_start.py [--runs N] [--device D] BIN [BIN ..]     BIN: a folder with the programs, as build/release/bin

Prints a table of medians, with the quartiles beside them. The builds take turns, so that what else the machine does
meets all of them.
"""
import argparse
import os
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "..", "..", "docs", "runs", "tiny.yaml")


def seconds_of(command):
    begin = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


def kibibytes(pid, key):
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        for line in lines:
            if line.startswith(key + ":"):
                return int(line.split()[1])
    raise RuntimeError(f"no {key} in /proc/{pid}/smaps_rollup")


def wait_for(path):
    for _ in range(1000):
        if os.path.exists(path):
            return
        time.sleep(0.01)
    raise RuntimeError(f"{path} did not come")


def ready(folder, device):
    """A worker of a coordinator, until it serves: seconds, then its memory in KiB."""
    with tempfile.TemporaryDirectory() as scratch:
        socket = os.path.join(scratch, "c.sock")
        coordinator = subprocess.Popen([os.path.join(folder, "weft-coordinator"), "--listen", f"unix:{socket}"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(socket)
            begin = time.monotonic()
            worker = subprocess.Popen(
                [os.path.join(folder, "weft-worker"), "--coordinator", f"unix:{socket}", "--metrics", "127.0.0.1:0"] + device,
                stderr=subprocess.PIPE, text=True)
            try:
                for line in worker.stderr:  # it says so when all but the session's first message is done
                    if "metrics at" in line:
                        break
                else:
                    raise RuntimeError("the worker ended before it served")
                seconds = time.monotonic() - begin
                time.sleep(0.3)  # its threads come to rest
                return seconds, kibibytes(worker.pid, "Rss"), kibibytes(worker.pid, "Anonymous")
            finally:
                worker.kill()
                worker.wait()
        finally:
            coordinator.kill()
            coordinator.wait()


def train(folder, device):
    """The tiny run in one worker process: seconds, and the most that any process of it had resident, in KiB."""
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.monotonic()
        child = subprocess.Popen([os.path.join(folder, "weft"), "train", TINY, "--processes", "1", "--overwrite", "--out", scratch] + device,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        if status != 0:
            raise RuntimeError(f"weft train of {folder} failed")
        return time.monotonic() - begin, usage.ru_maxrss


def measure(folder, device):
    version = seconds_of([os.path.join(folder, "weft-worker"), "--version"])
    serves, resident, anonymous = ready(folder, device)
    trained, peak = train(folder, device)
    return {"`weft-worker --version`, ms": version * 1e3, "start until it serves, ms": serves * 1e3,
            "resident then, MiB": resident / 1024, "of that its own (anonymous), MiB": anonymous / 1024,
            "`weft train tiny.yaml --processes 1`, ms": trained * 1e3, "most resident in it, MiB": peak / 1024}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--device", help="for builds that know the flag")
    parser.add_argument("bin", nargs="+")
    arguments = parser.parse_args()
    device = ["--device", arguments.device] if arguments.device else []
    for folder in arguments.bin:
        measure(folder, device)  # reads the files into the page cache
    samples = {folder: [] for folder in arguments.bin}
    for run in range(arguments.runs):
        # The order alternates, because each build meets what the one before it left behind.
        order = arguments.bin if run % 2 == 0 else arguments.bin[::-1]
        for folder in order:
            samples[folder].append(measure(folder, device))
    print(f"| median of {arguments.runs} (quartiles) | " + " | ".join(f"`{folder}`" for folder in arguments.bin) + " |")
    print("| --- |" + " --- |" * len(arguments.bin))
    for figure in samples[arguments.bin[0]][0]:
        cells = []
        for folder in arguments.bin:
            values = [sample[figure] for sample in samples[folder]]
            low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
            cells.append(f"{middle:.1f} ({low:.1f} to {high:.1f})")
        print(f"| {figure} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
