#!/usr/bin/env python3
"""Processor's time of a coordinator that takes many connections at once, with mutual TLS and without.

    tests/bench/tls_handshakes.py [--connections N] [--processes N] BIN     BIN: a folder with the programs

Each of the processes opens its share of the connections at once, with a worker's certificate, begins HTTP/2, and waits for the
coordinator's settings, which come behind the handshake. The connections stay open until all have them. The other ends run on the same
machine, so the time that has passed says less than the processor's time, which is read from /proc, for each thread.
"""
import argparse
import multiprocessing
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from free_ports import free_port  # noqa: E402

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings
TICK = os.sysconf("SC_CLK_TCK")


def connect(port, certificates, done, release, failures):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=120) as raw:
            link = raw
            if certificates is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False
                context.load_verify_locations(certificates / "ca.crt")
                context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
                context.set_alpn_protocols(["h2"])
                link = context.wrap_socket(raw)
            link.sendall(PREFACE)
            if not link.recv(9):
                raise RuntimeError("the coordinator has closed the connection")
            done.release()
            release.wait()
    except (OSError, RuntimeError) as error:
        failures.put(str(error))
        done.release()


def open_share(count, *arguments):
    threads = [threading.Thread(target=connect, args=arguments) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def seconds_of_threads(pid):
    """Returns the processor's time of each thread, by number and name; gRPC names its own."""
    times = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        times[f"{task.name} {(task / 'comm').read_text().strip()}"] = (int(fields[11]) + int(fields[12])) / TICK
    return times


def start(bins, folder, tls):
    """Returns a coordinator that listens, and its port."""
    port = free_port()
    flags = ["--tls", folder / "certs/coordinator"] if tls else []
    command = [bins / "weft-coordinator", "--listen", f"127.0.0.1:{port}", "--output-root", folder / "out", *flags]
    coordinator = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in coordinator.stderr:
        if "listening on" in line:
            return coordinator, port
    raise RuntimeError("the coordinator does not listen")


def measure(options, folder, tls):
    coordinator, port = start(options.bins, folder, tls)
    try:
        before, begin = seconds_of_threads(coordinator.pid), time.monotonic()
        done, release, failures = multiprocessing.Semaphore(0), multiprocessing.Event(), multiprocessing.SimpleQueue()
        arguments = (options.connections // options.processes, port, folder / "certs/worker" if tls else None, done, release, failures)
        processes = [multiprocessing.Process(target=open_share, args=arguments) for _ in range(options.processes)]
        for process in processes:
            process.start()
        count = arguments[0] * options.processes
        for _ in range(count):
            done.acquire()
        passed, after = time.monotonic() - begin, seconds_of_threads(coordinator.pid)
        release.set()
        for process in processes:
            process.join()
        if not failures.empty():
            raise RuntimeError(f"a connection failed: {failures.get()}")
        spent = sorted(((after[t] - before.get(t, 0), t) for t in after), reverse=True)
        print(f"{'TLS' if tls else 'plain'}, {count} connections: {sum(s for s, _ in spent) / count * 1e3:.2f} ms of the processor each, "
              f"all after {passed:.1f} s; of threads: {', '.join(f'{s:.2f} s {name}' for s, name in spent if s > 0)}")
    finally:
        coordinator.kill()
        coordinator.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bins", type=pathlib.Path)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft_handshakes_") as name:
        folder = pathlib.Path(name)
        subprocess.run([options.bins / "weft", "certs", "init", folder / "certs"], check=True, stdout=subprocess.DEVNULL)
        for tls in (False, True):
            measure(options, folder, tls)


if __name__ == "__main__":
    main()
