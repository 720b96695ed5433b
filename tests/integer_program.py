#!/usr/bin/env python3
"""Compares `weft plan` with Cbc, which solves the published integer program of periodic patterns.

    integer_program.py BIN_DIR [--seconds S]

The program is that of Beaumont, Eyraud-Dubois and Shilova (HAL hal-02968802v1) with its printed errors repaired: sharing
a rank is transitive, and a layer boundary inside a rank has no transfer. It chooses placement, starts, orders and index
shifts together, with big constants, and shares no code and no idea of search with the planner. Published least periods are
solved again, and chains of `weft plan` that keep their inputs only. Prints what differs and exits 1. Without the program cbc
it says so loudly, checks nothing and exits 77.
"""

import argparse
import itertools
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

# Chain, ranks, links' time for each byte, and the least periods by memory (0: nothing fits), in the count of all tensors.
TABLES = [
    ("three layers", dict(times=[1, 2, 1], tensors=[2, 3, 2], weights=[0, 0, 0], ranks=2), {9: 0, 10: 8, 15: 6, 21: 4}),
    ("three layers, slow links", dict(times=[1, 2, 1], tensors=[2, 3, 2], weights=[0, 0, 0], ranks=2, per_byte=0.5),
     {15: 6, 21: 5}),
    ("weights", dict(times=[1, 2, 1], tensors=[1, 1, 1], weights=[1, 2, 1], ranks=2), {12: 0, 13: 8, 14: 6, 16: 4}),
    ("two layers with a loss", dict(times=[1, 1], tensors=[1, 1], weights=[0, 0], ranks=2, per_byte=1, loss=1),
     {3: 0, 4: 4, 6: 4, 7: 2}),
    ("one rank", dict(times=[1, 1], tensors=[1, 1], weights=[0, 0], ranks=1, per_byte=1, loss=1), {3: 0, 4: 4}),
]


class Program:
    """The integer program of one chain, written as an .lp file. Tasks are numbered from 1 to 2L, as published."""

    def __init__(self, times, tensors, weights, ranks, memory, per_byte=0.0, loss=0, kept_only=False):
        self.L, self.P, self.M, self.kept_only = len(times), ranks, memory, kept_only
        L = self.L
        self.d = {l: times[min(l, 2 * L - l + 1) - 1] for l in range(1, 2 * L + 1)}
        a = list(tensors) + [loss]
        self.a = {l: a[min(l, 2 * L - l)] for l in range(2 * L + 1)}
        self.dt = {l: self.a[l] * per_byte for l in range(1, 2 * L)}
        self.w = weights
        self.K = sum(self.d.values()) + sum(self.dt.values())
        self.rows, self.binaries, self.integers, self.free = [], set(), set(), set()
        self.write()

    # A sum is a dictionary of coefficients; a term with the name "" is a constant.
    def at_least(self, terms, bound):
        total = {}
        for name, factor in terms:
            total[name] = total.get(name, 0) + factor
        bound -= total.pop("", 0)
        total = {n: f for n, f in total.items() if f != 0}
        if total:
            self.rows.append(" ".join(f"{f:+.10g} {n}" for n, f in total.items()) + f" >= {bound:.10g}")
        elif bound > 1e-9:
            self.rows.append("+1 T <= -1")  # never

    def binary(self, name):
        self.binaries.add(name)
        return name

    def z(self, l, m):
        """One rank for both tasks: one variable for both orders of the two, and for a layer's forward and backward."""
        l, m = (min(x, 2 * self.L - x + 1) for x in (l, m))
        return "" if l == m else self.binary(f"z_{min(l, m)}_{max(l, m)}")

    def before(self, l, m):
        return self.binary(f"w_{l}_{m}")

    def write(self):
        self.placement()
        self.order()
        if any(self.dt.values()):
            self.links()
        self.shifts()
        self.memory()

    def placement(self):
        layers = range(1, self.L + 1)
        for l, m, n in itertools.combinations(layers, 3):
            for x, y, u in ((self.z(m, n), self.z(l, m), self.z(l, n)), (self.z(l, n), self.z(l, m), self.z(m, n)),
                            (self.z(l, m), self.z(l, n), self.z(m, n))):
                self.at_least([(x, 1), (y, -1), (u, -1)], -1)
        firsts = []
        for l in layers:
            first = self.binary(f"f_{l}")
            firsts.append((first, -1))
            self.at_least([(first, 1)] + [(self.z(m, l), 1) for m in range(1, l)], 1)
        self.at_least(firsts, -self.P)

    def order(self):
        d, K, tasks = self.d, self.K, range(1, 2 * self.L + 1)
        for l in tasks:
            self.free.add(f"tau_{l}")
            self.at_least([(f"tau_{l}", 1)], -d[l])
            self.at_least([("T", 1), (f"tau_{l}", -1)], d[l])
            for m in tasks:
                if l == m:
                    continue
                z, w = self.z(l, m), self.before(l, m)
                self.at_least([(f"tau_{l}", 1), (f"tau_{m}", -1), ("", K), (z, -K), (w, K)], d[m])
                self.at_least([(f"tau_{m}", 1), (f"tau_{l}", -1), ("", 2 * K), (z, -K), (w, -K)], d[l])
                self.at_least([(z, 1), (w, -1)], 0)
                self.at_least([("T", 1), (f"tau_{l}", -1), (f"tau_{m}", 1), ("", K), (z, -K)], d[l])
        self.at_least([("tau_1", 1)], 0)
        self.at_least([("tau_1", -1)], 0)

    def links(self):
        cuts, K, dt = range(1, 2 * self.L), self.K, self.dt
        for l, m in itertools.combinations(cuts, 2):
            zt = self.binary(f"zt_{l}_{m}")
            here = self.z(l, l + 1)
            self.at_least([(zt, 1), (self.z(l, m), -1), (self.z(l + 1, m + 1), -1), (here, 1)], -1)
            self.at_least([(zt, 1), (self.z(l, m + 1), -1), (self.z(l + 1, m), -1), (here, 1)], -1)
            wt = self.binary(f"wt_{l}_{m}")  # l before m
            self.at_least([(f"tt_{l}", 1), (f"tt_{m}", -1), ("", K), (zt, -K), (wt, K)], dt[m])
            self.at_least([(f"tt_{m}", 1), (f"tt_{l}", -1), ("", 2 * K), (zt, -K), (wt, -K)], dt[l])
            for x, y in ((l, m), (m, l)):
                self.at_least([("T", 1), (f"tt_{x}", -1), (f"tt_{y}", 1), ("", K), (zt, -K)], dt[x])

    def shifts(self):
        K, d = self.K, self.d
        for l in range(1, 2 * self.L):
            self.free.add(f"tt_{l}")
            z, dt = self.z(l, l + 1), self.dt[l]
            end, tt, after = [(f"tau_{l}", 1), ("", d[l])], [(f"tt_{l}", 1)], [(f"tau_{l + 1}", 1)]
            done = tt + [("", dt), (z, -dt)]
            minus = lambda terms: [(n, -f) for n, f in terms]
            v, vv, u, uu = (self.binary(f"{x}_{l}") for x in ("v", "vv", "u", "uu"))
            self.at_least(done, 0)
            self.at_least([("T", 1)] + minus(done), 0)
            self.at_least(tt + minus(end) + [(v, K)], 0)
            self.at_least(after + minus(done) + [(u, K)], 0)
            self.at_least(tt + [("T", 1)] + minus(end) + [(vv, 2 * K)], 0)
            self.at_least(after + [("T", 1)] + minus(done) + [(uu, 2 * K)], 0)

    def copies(self, m):
        return [(f"{x}_{q}", 1) for q in range(m, 2 * self.L - m + 1) for x in ("v", "vv", "u", "uu")]

    def memory(self):
        L, a = self.L, self.a
        for l in range(1, 2 * L + 1):
            used = [("", a[l - 1] if not self.kept_only or l <= L else 0)]
            used += [] if self.kept_only else [("", a[l])]
            for m in range(1, L + 1):
                z, sigma = self.z(l, m), f"sg_{l}_{m}"
                self.integers.add(sigma)
                self.at_least([(sigma, 1), ("", 8 * L), (z, -8 * L)] + [(n, -f) for n, f in self.copies(m)], 0)
                used.append((sigma, a[m - 1]))
                used += [(self.before(m, l), a[m - 1])] if m != l else []
                used += [(self.before(2 * L - m + 1, l), -a[m - 1])] if 2 * L - m + 1 != l else []
                used.append((z, (1 if self.kept_only else 3) * self.w[m - 1]))
            for m in range(1, 2 * L) if not self.kept_only else []:
                if l not in (m, m + 1):
                    waits = self.binary(f"o_{l}_{m}")
                    self.at_least([(waits, 1), (self.before(m, l), -1), (self.before(l, m + 1), -1),
                                   (self.before(m + 1, m), -1)], -1)
                    used.append((waits, a[m]))
                buffer = self.binary(f"b_{l}_{m}")
                one, other = self.z(l, m), self.z(l, m + 1)
                self.at_least([(buffer, 1), (one, -1), (other, 1)], 0)
                self.at_least([(buffer, 1), (other, -1), (one, 1)], 0)
                used.append((buffer, a[m]))
            self.at_least([(n, -f) for n, f in used], -self.M)

    def text(self):
        return "\n".join(["Minimize", " period: T", "Subject To"] + [f" r{i}: {row}" for i, row in enumerate(self.rows)] +
                         ["Bounds"] + [f" {name} free" for name in sorted(self.free)] +
                         ["Generals"] + [f" {name}" for name in sorted(self.integers)] +
                         ["Binaries"] + [f" {name}" for name in sorted(self.binaries)] + ["End", ""])

    def solve(self, cbc, folder, seconds):
        """Returns the least period, 0 where nothing fits, None where the time was over."""
        path = folder / "pattern.lp"
        path.write_text(self.text())
        done = subprocess.run([cbc, str(path), "sec", str(seconds), "ratio", "0", "allow", "1e-6", "solve", "solu",
                               str(folder / "solution.txt")], capture_output=True, text=True)
        first = (folder / "solution.txt").read_text().splitlines()[0] if (folder / "solution.txt").exists() else ""
        if re.search("infeasible", first, re.I) or "proven infeasible" in done.stdout:
            return 0
        found = re.search(r"Optimal - objective value\s+([0-9.e+-]+)", first)
        return float(found[1]) if found else None


def planned(weft, folder, times, kept, weights, ranks, memory):
    """Returns what `weft plan` says of a chain that keeps its inputs only, 0 where nothing fits."""
    layers = [{"forward": t, "backward": t, "activation_bytes": k, "weight_bytes": w}
              for t, k, w in zip(times, kept, weights)]
    path = folder / "layers.json"
    path.write_text(json.dumps({"layers": layers}))
    done = subprocess.run([weft, "plan", str(path), "--workers", str(ranks), "--memory", str(memory), "--schedule",
                           "periodic", "-o", "json"], capture_output=True, text=True)
    plan = json.loads(done.stdout) if done.stdout else {}
    return plan["period"] if plan.get("fits") else 0 if done.returncode == 1 else None


def kept_chains():
    """E5's and E6's chains without and with little memory, and small random ones."""
    yield "E6", dict(times=[1, 2, 1], kept=[2, 3, 2], weights=[0, 0, 0], ranks=2, memory=6)
    yield "E6", dict(times=[1, 2, 1], kept=[2, 3, 2], weights=[0, 0, 0], ranks=2, memory=8)
    draw = random.Random(5)
    for i in range(8):
        layers = draw.choice([2, 3])
        times, kept = ([draw.randint(1, 4) for _ in range(layers)] for _ in range(2))
        weights = [draw.randint(0, 2) for _ in range(layers)]
        yield f"random {i}", dict(times=times, kept=kept, weights=weights, ranks=2, memory=draw.randint(4, 9))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=20, help="for each program")
    options = parser.parse_args()
    cbc = shutil.which("cbc")
    if cbc is None:
        print("NOT CHECKED: there is no cbc here (Debian: coinor-cbc), so nothing was compared with the planner")
        return 77
    weft, problems, checked, over = str((options.bin / "weft").resolve()), [], 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cases = [(f"{title}, memory {memory}", Program(memory=memory, **chain), expected)
                 for title, chain, table in TABLES for memory, expected in table.items()]
        for title, chain in kept_chains():
            period = planned(weft, folder, **chain)
            kept = chain.pop("kept")
            cases.append((f"{title}, memory {chain['memory']}", Program(tensors=kept, kept_only=True, **chain), period))
        for title, program, expected in cases:
            (folder / "solution.txt").unlink(missing_ok=True)
            found = program.solve(cbc, folder, options.seconds)
            over += found is None
            checked += found is not None
            if found is not None and (expected is None or abs(found - expected) > 1e-4):
                problems.append(f"{title}: Cbc says {found:g}, the planner {expected}")
    print("\n".join(problems) or f"{checked} least periods are those of Cbc; {over} took it more than {options.seconds:g} s")
    return 1 if problems or checked < 15 else 0


if __name__ == "__main__":
    sys.exit(main())
