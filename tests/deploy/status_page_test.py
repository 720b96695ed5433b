#!/usr/bin/env python3
"""Looks at the status page of real daemons that train, with a real browser: status_page_test.py BIN_DIR [--pictures DIR]

The pages must show the run while it goes on and when it has ended, show themselves anew, take nothing from elsewhere, and make the
browser complain of nothing. The command for the trace must write one. Their JSON must be what the command line prints. --pictures leaves what the browser shows on a desk and
on a phone. Needs Debian's chromium; exits with 77 without it."""
import argparse
import html
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

from daemons import SECONDS, Daemons, eventually, free_port

RUN = """name: shown
model: {gpt: {layers: 2, width: 32, heads: 2, context: 32}}
data: {text: {path: text.txt}}
train: {steps: 100000, batch: 8, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}
stages: 4
schedule: 1f1b
"""


class Service(Daemons):
    """A coordinator with a status page, and two workers."""

    def __init__(self, bin_dir, folder):
        super().__init__(bin_dir, folder)
        port = free_port()
        self.url, self.address = f"http://127.0.0.1:{port}", f"unix:{folder}/coordinator.sock"
        self.start("weft-coordinator", "--listen", self.address, "--metrics", f"127.0.0.1:{port}", "--output-root", folder)
        for name in ("w0", "w1"):
            self.start("weft-worker", "--coordinator", self.address, "--name", name)

    def weft(self, *arguments):
        return subprocess.run([self.bin / "weft", *arguments, "--coordinator", self.address], capture_output=True, text=True, check=True).stdout

    def get(self, path):
        """Returns the answer's code, type and text."""
        try:
            answer = urllib.request.urlopen(self.url + path, timeout=10)
        except urllib.error.HTTPError as error:
            answer = error
        except OSError:
            return 0, "", ""
        return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()


class Browser:
    def __init__(self, folder):
        self.command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                        "--enable-logging=stderr", f"--user-data-dir={folder}/browser"]

    def look(self, url, *options):
        """Returns the page as the browser has it a few seconds later, which complains of nothing."""
        done = subprocess.run([*self.command, *options, url], capture_output=True, text=True, timeout=SECONDS, check=True)
        complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert not complaints, complaints
        return done.stdout

    def picture(self, url, path, width, height):
        self.look(url, f"--screenshot={path}", f"--window-size={width},{height}")


def check_pages(service, browser):
    """Checks the pages of a run that goes on."""
    code, kind, page = service.get("/runs/1")
    assert (code, kind) == (200, "text/html; charset=utf-8"), (code, kind)
    for picture in ("Loss", "The last steps", "Memory"):
        assert f">{picture}<" in page, picture
    outside = [a for a in re.findall(r"""(?:src|href)=["']([^"']*)""", page) if not a.startswith("/")]
    assert not outside, outside
    shown = browser.look(service.url + "/runs/1", "--dump-dom", "--virtual-time-budget=9000")
    assert "<svg" in shown and ">busy<" in shown, shown
    assert re.search(r'data-shown-anew="[1-9]', shown), "the page has not shown itself anew"
    assert "shown" in browser.look(service.url + "/", "--dump-dom")
    for path in ("/runs/2", "/runs/x", "/runs/1/", "/../etc/passwd", "/runs/99999999999999999999", "/favicon.ico"):
        assert service.get(path)[0] == 404, path
    assert service.get("/healthz")[0] == 200 and "weft_steps_total" in service.get("/metrics")[2]


def check_trace(service, browser):
    """Checks that the command that the page shows writes a trace in Chrome's form."""
    shown = browser.look(service.url + "/runs/1", "--dump-dom")
    command = html.unescape(re.search(r'<code id="trace">(.*?)</code>', shown)[1])
    program, *arguments = shlex.split(command)
    assert program == "weft", command
    subprocess.run([service.bin / program, *arguments, "--coordinator", service.address], capture_output=True, check=True, cwd=service.folder)
    events = json.loads((service.folder / arguments[-1]).read_text())["traceEvents"]
    jobs = [e for e in events if e["ph"] == "X"]
    assert {e["cat"] for e in jobs} >= {"forward", "backward"}, {e.get("cat") for e in jobs}
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and {"name", "pid", "tid"} <= set(e) for e in jobs)


def check_json(service):
    """Checks that programs read there what the command line prints."""
    of_page, printed = json.loads(service.get("/runs/1.json")[2]), json.loads(service.weft("describe", "1", "-o", "json"))
    assert printed.pop("events")[0]["text"].endswith("was submitted"), printed
    assert of_page == printed, (of_page, printed)
    everything = json.loads(service.get("/status.json")[2])
    for of_page, command in ((everything["runs"], "ls"), (everything["workers"], "workers")):
        printed = json.loads(service.weft(command, "-o", "json"))
        for row in of_page + printed:
            row.pop("silent_seconds", None)
        assert of_page == printed, (of_page, printed)


def check(service, browser, pictures):
    eventually("the page", lambda: "No run was submitted yet." in service.get("/")[2])
    (service.folder / "text.txt").write_text("the loom and the shuttle and the thread of the weft\n" * 400)
    (service.folder / "run.yaml").write_text(RUN)
    service.weft("submit", service.folder / "run.yaml", "--processes", "2", "--out", service.folder / "out", "--detach")
    eventually("pictures of the run", lambda: all(p in service.get("/runs/1")[2] for p in (">Loss<", ">Memory<", ">The last steps<")))
    check_pages(service, browser)
    for name, width, height in (("desk", 1200, 2000), ("phone", 400, 1800)):
        for path in ("", "runs/1"):
            browser.picture(f"{service.url}/{path}", pictures / f"{name}_{path.replace('/', '_')}.png", width, height)
    check_trace(service, browser)
    service.weft("cancel", "1")
    eventually("the end of the run", lambda: "cancelled" in service.get("/runs/1")[2])
    # Somebody who looks at it when it ends still sees what it did.
    eventually("the pictures of the run that has ended", lambda: all(
        p in service.get("/runs/1")[2] for p in ("Its pictures and figures are in", ">Loss<", ">Memory<", ">The last steps<")))
    check_json(service)
    check_trace(service, browser)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--pictures", type=pathlib.Path)
    options = parser.parse_args()
    if shutil.which("chromium") is None:
        print("SKIPPED: the status page was not looked at: Debian has a browser in the package chromium", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory(prefix="weft_status_") as name:
        folder = pathlib.Path(name)
        with Service(options.bin_dir.absolute(), folder).until_the_end() as service:
            check(service, Browser(folder), options.pictures or folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
