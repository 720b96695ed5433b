#!/usr/bin/env python3
"""Runs every command of weft with -o json and compares what it prints with docs/guide/json.md: json_output_test.py BIN_DIR

The page has a section for each form of a command: what it prints, the keys that are always there, and those that are sometimes.
A command in `weft --help` without a section must be in the page's table of commands that need none, and then has no such form."""
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

RUN = """name: tiny
model: {gpt: {layers: 2, width: 32, heads: 2, context: 32}}
data: {text: {path: text.txt}}
train: {steps: STEPS, batch: 8, microbatches: 4, seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}
stages: 4
schedule: {lpp: {groups: 1, ranks: 2}}
"""
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guide" / "json.md"

# The command line of each section, behind `weft`. The heading of a section names the command and what it needs.
LOCAL = [
    ("train FILE", "train run.yaml --processes 2 --record hashes"),
    ("eval FILE", "eval run.yaml"),
    ("generate RUN", "generate out/tiny --prompt a --tokens 4"),
    ("checkpoint ls FOLDER", "checkpoint ls out/tiny"),
    ("checkpoint verify FOLDER", "checkpoint verify out/tiny"),
    ("export-weights FOLDER FILE", "export-weights out/tiny weights.safetensors"),
    ("simulate SCHEDULE", "simulate 1f1b --stages 4 --microbatches 8 --jobs"),
    ("compare FILE", "compare run.yaml"),
    ("compare FILE --measure", "compare run.yaml --measure --steps 2 --repeats 1 --schedules gpipe"),
    ("plan FILE", "plan run.yaml --workers 2 --time-limit 2"),
    ("plan --from OUT", "plan --from out/tiny --time-limit 2"),
    ("explain RUN", "explain out/tiny"),
    ("trace RUN", "trace out/tiny --otlp spans.json --perfetto perfetto.json"),
    ("diff A B", "diff out/tiny out/tiny"),
    ("certs init FOLDER", "certs init certs"),
    ("certs add FOLDER", "certs add certs --role viewer --name bob"),
    ("certs token FOLDER", "certs token certs --role viewer --name bob"),
    ("config show", "config show"),
    ("config check FILE", "config check client.yaml"),
]
# With a coordinator and two workers. Run 1 ends, run 2 goes on until it is cancelled.
REMOTE = [
    ("submit FILE", "submit run.yaml"),
    ("submit FILE --detach", "submit long.yaml --detach"),
    ("ls", "ls"),
    ("workers", "workers"),
    ("top", "top"),
    ("doctor", "doctor"),
    ("describe RUN", "describe 1"),
    ("logs RUN", "logs 1"),
    ("wait RUN", "wait 1"),
    ("move RUN", "move 2 --rank 0 --to w1 --detach"),
    ("cancel RUN", "cancel 2"),
    ("drain WORKER", "drain w0 --detach"),
]


class Page:
    """The sections of the page, and its table of commands without one. A section may have the keys of another one."""

    def __init__(self, text):
        self.sections = dict(re.findall(r"^### `weft ([^`]*)`\n\n(.*?)(?=^##|\Z)", text, re.M | re.S))
        self.without = set(re.findall(r"^\| `weft ([^`]*)` \|", text, re.M))

    def keys(self, section):
        """Returns the form, the keys that are always there, and those that are sometimes."""
        body = self.sections[section]
        form = re.match(r"(An object per line|An array of objects|An object)\.", body)
        assert form, f"{PAGE}: weft {section}: the first sentence must say what the command prints"
        other = re.search(r"The keys of `weft ([^`]*)`\.", body)
        always, sometimes = self.keys(other[1])[1:] if other else (set(), set())
        for item in re.findall(r"^- (.*(?:\n  .*)*)", body, re.M):
            parts = re.fullmatch(r"((?:`[^`]*`|[^`:])+):\s(.*)", item, re.S)
            assert parts, f"{PAGE}: weft {section}: '{item}' must have a condition, a colon and keys"
            (always if parts[1] == "Always" else sometimes).update(re.findall(r"`([a-z_0-9]+)`", parts[2]))
        assert always, f"{PAGE}: weft {section} has no keys"
        return form[1], always, sometimes


def objects(form, text):
    """Returns the objects in what was printed, which has the form."""
    if form == "An object per line":
        return [json.loads(line) for line in text.splitlines()]
    value = json.loads(text)
    if form == "An array of objects":
        assert isinstance(value, list), text[:200]
        return value
    assert form == "An object" and isinstance(value, dict), (form, text[:200])
    return [value]


class Weft:
    """The command, in a folder."""

    def __init__(self, bins, folder):
        self.bins, self.folder, self.daemons = bins, folder, []

    def run(self, *words):
        return subprocess.run([self.bins / "weft", *words], cwd=self.folder, capture_output=True, text=True, timeout=300)

    def start(self, *words):
        with open(self.folder / "daemons.log", "ab") as log:
            self.daemons.append(subprocess.Popen([self.bins / words[0], *words[1:]], cwd=self.folder, stderr=log, stdout=log))

    def stop(self):
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()


def commands(weft):
    """Returns the names of all commands."""
    listed = re.search(r"^Subcommands:\n(.*?)\n\n", weft.run("--help").stdout, re.M | re.S).group(1)
    return re.findall(r"^  ([a-z][a-z-]*)", listed, re.M)


def offers_json(weft, command):
    about = re.search(r"-o,--output.*?(?=\n  -|\n\n|\Z)", weft.run(command, "--help").stdout, re.S)
    return about is not None and "json" in about.group()


def check_sections(weft, page):
    """Every command has a section and the flag, or is among those without."""
    with_section = {section.split()[0] for section in page.sections}
    for command in commands(weft):
        assert (command in with_section) != (command in page.without), f"weft {command} must be in one part of {PAGE}"
        assert offers_json(weft, command) == (command in with_section), f"weft {command} --help and {PAGE} do not agree about -o json"
    sampled = {section for section, _ in LOCAL + REMOTE}
    assert sampled == set(page.sections), f"sections without a command line here, or the other way round: {sampled ^ set(page.sections)}"


def check_output(page, section, done):
    form, always, sometimes = page.keys(section)
    assert done.returncode in ((0, 1) if section == "doctor" else (0,)), (section, done.returncode, done.stderr)
    found = objects(form, done.stdout)
    assert found, f"weft {section} printed nothing"
    for one in found:
        keys = set(one)
        assert always <= keys, f"weft {section}: lacks {always - keys}"
        assert keys <= always | sometimes, f"weft {section}: {keys - always - sometimes} are not in {PAGE}"


def serve(weft):
    """Starts a coordinator and two workers. Returns the flags by which it is reached."""
    address = f"unix:{weft.folder}/c.sock"
    weft.start("weft-coordinator", "--listen", address, "--output-root", "runs")
    for number in range(2):
        weft.start("weft-worker", "--coordinator", address, "--name", f"w{number}", "--roots", "/")
    reach = ("--coordinator", address)
    while True:
        listed = weft.run("workers", "-o", "json", *reach)
        if listed.returncode == 0 and len(json.loads(listed.stdout)) == 2:
            return reach
        assert all(daemon.poll() is None for daemon in weft.daemons), (weft.folder / "daemons.log").read_text()
        time.sleep(0.1)


def await_steps(weft, run, reach):
    while json.loads(weft.run("describe", run, "-o", "json", *reach).stdout)["steps_done"] < 5:
        time.sleep(0.1)


def all_outputs(weft):
    """Yields each section with the result of its command."""
    for section, line in LOCAL:
        yield section, weft.run(*line.split(), "-o", "json")
    reach = serve(weft)
    for section, line in REMOTE:
        if section == "move RUN":
            await_steps(weft, "2", reach)
        yield section, weft.run(*line.split(), "-o", "json", *reach)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    page = Page(PAGE.read_text())
    with tempfile.TemporaryDirectory(prefix="weft_test_") as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
        (folder / "run.yaml").write_text(RUN.replace("STEPS", "4"))
        (folder / "long.yaml").write_text(RUN.replace("STEPS", "1000000"))
        (folder / "client.yaml").write_text("insecure: true\n")
        weft = Weft(pathlib.Path(sys.argv[1]).resolve(), folder)
        try:
            check_sections(weft, page)
            for section, done in all_outputs(weft):
                check_output(page, section, done)
                print(f"weft {section}: as documented")
        finally:
            weft.stop()


if __name__ == "__main__":
    main()
