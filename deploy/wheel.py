#!/usr/bin/env python3
"""Packs a bundle and the Python package as one wheel, which runs on the torch that pip installs.

    deploy/wheel.py BUNDLE OUT      BUNDLE: the folder that deploy/bundle.sh made

The wheel serves every Python: nothing in it is compiled against one. Its name says the glibc that it needs.
"""
import base64
import hashlib
import pathlib
import re
import sys
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
MOST = 64 << 20  # bytes of the wheel
METADATA = """\
Metadata-Version: 2.1
Name: weft
Version: {version}
Summary: Distributed training of PyTorch models under any parallel schedule, with the same bits
License-File: LICENSE
Requires-Python: >=3.10
Requires-Dist: torch=={torch}
Requires-Dist: numpy
Requires-Dist: pyyaml

{readme}"""
WHEEL = "Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: false\nTag: {tag}\n"
ENTRY_POINTS = """[console_scripts]
weft = weft.programs:weft
weft-worker = weft.programs:weft_worker
weft-coordinator = weft.programs:weft_coordinator
"""


class Wheel:
    """A zip file that notes the hash of each of its files."""

    def __init__(self, path, info):
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self._info, self._record = info, []

    def add(self, name, content, executable=False):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(content)}")

    def close(self):
        record = "\n".join([*self._record, f"{self._info}/RECORD,,"]) + "\n"
        self._zip.writestr(zipfile.ZipInfo(f"{self._info}/RECORD", (1980, 1, 1, 0, 0, 0)), record)
        self._zip.close()


def only(pattern, text, what):
    found = re.search(pattern, text)
    if found is None:
        sys.exit(f"wheel: the bundle does not say {what}")
    return found.group(1)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    bundle, out = map(pathlib.Path, sys.argv[1:])
    version = only(r"weft-(.+)-linux-x86_64$", bundle.resolve().name, "its version")
    torch = only(r"\nneeded=([0-9.]+)", (bundle / "bin" / "weft-worker").read_text(encoding="utf-8"), "its LibTorch")
    glibc = only(r"glibc (2\.[0-9]+)", (bundle / "README.txt").read_text(encoding="utf-8"), "its glibc")
    tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_x86_64"
    info = f"weft-{version}.dist-info"
    path = out / f"weft-{version}-{tag}.whl"
    partial = path.with_suffix(".part")
    wheel = Wheel(partial, info)
    for file in sorted((SOURCE / "python" / "weft").iterdir()):
        if file.is_file():
            wheel.add(f"weft/{file.name}", file.read_bytes())
    for part in ("bin", "libexec", "lib", "licenses"):
        for file in sorted(p for p in (bundle / part).rglob("*") if p.is_file()):
            wheel.add(f"weft/bundle/{file.relative_to(bundle)}", file.read_bytes(), part in ("bin", "libexec"))
    readme = (SOURCE / "README.md").read_text(encoding="utf-8")
    wheel.add(f"{info}/METADATA", METADATA.format(version=version, torch=torch, readme=readme).encode())
    wheel.add(f"{info}/WHEEL", WHEEL.format(tag=tag).encode())
    wheel.add(f"{info}/entry_points.txt", ENTRY_POINTS.encode())
    for name in ("LICENSE", "NOTICE", "THIRD_PARTY_NOTICES.md"):
        wheel.add(f"{info}/licenses/{name}", (bundle / name).read_bytes())
    wheel.close()
    if partial.stat().st_size > MOST:
        sys.exit(f"wheel: {partial} has {partial.stat().st_size} bytes; {MOST} are the most that it may have")
    partial.rename(path)
    print(f"wheel: {path}: {path.stat().st_size >> 10} KiB, for torch {torch} and glibc {glibc}", file=sys.stderr)


if __name__ == "__main__":
    main()
