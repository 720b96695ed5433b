#!/usr/bin/env bash
# Brings a Debian 12 machine to the state in which Weft builds, runs and passes its tests.
#
# Debian's packages are installed by name; LibTorch and UCX come from their PyPI wheels, pinned, into build/deps (headers and
# libraries only: Weft needs no Python at run time). Running it again does nothing and takes a fraction of a second.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ clang clang-tidy clang-format cmake ninja-build ccache pkg-config make git
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  prometheus-cpp-dev libcpp-httplib-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libmuparser-dev
  zlib1g-dev libgtest-dev libgmock-dev libbenchmark-dev python3 python3-pip prometheus curl
)
wheels=(torch==2.11.0 libucx-cu13==1.22.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
deps=build/deps
stamp="$deps/.installed"

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
done
if ((${#missing[@]})); then
  say "installing Debian packages: ${missing[*]}"
  command -v apt-get >/dev/null || fail "apt-get is not here; on another distribution install the equivalents of: ${missing[*]}"
  sudo=()
  if ((EUID != 0)); then
    sudo -n true 2>/dev/null || fail "installing needs root; run as root, or: sudo apt-get install ${missing[*]}"
    sudo=(sudo -n)
  fi
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}"
fi

if [[ "$(cat "$stamp" 2>/dev/null)" != "${wheels[*]}" ]]; then
  mkdir -p "$deps" || fail "cannot write $deps"
  need_kib=$((3 * 1024 * 1024))
  free_kib=$(df -Pk "$deps" | awk 'NR==2 {print $4}')
  ((free_kib > need_kib)) || fail "$deps needs 3 GiB of free disk, $((free_kib / 1024)) MiB are free"
  say "fetching into $deps: ${wheels[*]}"
  scratch=$(mktemp -d "$deps/fetch.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  # The wheels hold C++ headers and libraries; the Python version they were built for does not matter to us.
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_24_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
    --disable-pip-version-check -d "$scratch" "${wheels[@]}" || fail "pip could not fetch ${wheels[*]}"
  rm -rf "$deps/torch" "$deps/ucx" "$deps/cuda"
  python3 - "$scratch" "$deps" <<'PY'
import glob, os, shutil, sys, zipfile
scratch, deps = sys.argv[1:]
for wheel in glob.glob(os.path.join(scratch, "*.whl")):
    with zipfile.ZipFile(wheel) as z:
        keep = [n for n in z.namelist()
                if n.startswith(("torch/include/", "torch/lib/", "libucx/", "libucx_cu13.libs/", "nvidia/"))
                and not n.endswith((".py", ".pyc")) and "libtorch_python" not in n]
        z.extractall(os.path.join(scratch, "x"), keep)
x = os.path.join(scratch, "x")
shutil.move(os.path.join(x, "torch"), os.path.join(deps, "torch"))
shutil.move(os.path.join(x, "libucx"), os.path.join(deps, "ucx"))
libs = os.path.join(x, "libucx_cu13.libs")
if os.path.isdir(libs):
    shutil.move(libs, os.path.join(deps, "libucx_cu13.libs"))
shutil.move(os.path.join(x, "nvidia"), os.path.join(deps, "cuda"))
PY
  printf '%s' "${wheels[*]}" >"$stamp"
  say "dependencies are in $deps ($(du -sh "$deps" | cut -f1))"
fi
# A wheel keeps no execute permission; the bench runs this one.
[[ ! -e "$deps/ucx/bin/ucx_perftest" ]] || chmod +x "$deps/ucx/bin/ucx_perftest"
