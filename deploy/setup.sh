#!/usr/bin/env bash
# Brings a Debian 12 machine to the state in which Weft builds, runs and passes its tests.
#
#   deploy/setup.sh [run|test|fuzz|all]   run: what the programs need; test: also what the tests and the GPU library need
#                                         (the default); fuzz: also clang; all: also clang's tools, for `make checks` and
#                                         `make format`
#
# Debian's packages are installed by name; LibTorch and UCX come from their PyPI wheels, pinned, into build/deps (headers and
# libraries only: Weft needs no Python at run time). Running it again does nothing and takes a fraction of a second.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache pkg-config make
  libgrpc++-dev libssl-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  prometheus-cpp-dev libcpp-httplib-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libmuparser-dev
  libsqlite3-dev zlib1g-dev libdeflate-dev libxxhash-dev python3 python3-pip help2man
)
needs=${1:-test}
case $needs in
  run) ;;
  test | fuzz | all) packages+=(git lld libgtest-dev libgmock-dev libbenchmark-dev prometheus etcd-server etcd-client curl patchelf busybox-static man-db mandoc buildah mmdebstrap dpkg-dev python3-numpy python3-yaml) ;;&
  fuzz | all) packages+=(clang libclang-rt-14-dev) ;;&
  all) packages+=(clang-tidy clang-format) ;;
  test | fuzz | all) ;;
  *) echo "usage: deploy/setup.sh [run|test|fuzz|all]" >&2 && exit 64 ;;
esac
wheels=(torch==2.11.0 libucx-cu13==1.22.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
deps=build/deps
stamp="$deps/.installed"
# Libraries that LibTorch's CUDA half needs, with the wheels that its metadata names. A toolkit has most of it.
gpu_libraries=(
  "libcudnn.so.9 nvidia-cudnn-cu13==9.19.0.56" "libnccl.so.2 nvidia-nccl-cu13==2.28.9"
  "libcublas.so.13 nvidia-cublas==13.1.0.3" "libcufft.so.12 nvidia-cufft==12.0.0.61"
  "libcurand.so.10 nvidia-curand==10.4.0.35" "libcusolver.so.12 nvidia-cusolver==12.0.4.66"
  "libcusparse.so.12 nvidia-cusparse==12.6.3.3" "libnvJitLink.so.13 nvidia-nvjitlink==13.0.88"
  "libnvrtc.so.13 nvidia-cuda-nvrtc==13.0.88" "libcufile.so.0 nvidia-cufile==1.15.1.6"
  "libcusparseLt.so.0 nvidia-cusparselt-cu13==0.8.0" "libnvshmem_host.so.3 nvidia-nvshmem-cu13==3.4.5"
)
gpu_stamp="$deps/.installed-cuda"

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

missing=()
for p in "${packages[@]}"; do
  installed "$p" || missing+=("$p")
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
# A test each needs a solver, a browser and gRPC in Python, and says loudly that it is skipped without. (The last is no program.)
if [[ $needs != run ]] && command -v apt-get >/dev/null; then
  root=()
  ((EUID == 0)) || root=(sudo -n)
  for tool in "cbc coinor-cbc" "chromium chromium" "grpc python3-grpcio"; do
    read -r program package <<<"$tool"
    if command -v "$program" >/dev/null || installed "$package"; then continue; fi
    say "installing the Debian package $package, for one test"
    { "${root[@]}" apt-get update -qq &&
      "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"; } \
      >/dev/null 2>&1 || say "apt-get could not install $package; its test will be skipped"
  done
fi

# fetch NEED_MIB WHEEL..: unpacks the wheels' headers and libraries into $scratch/x.
fetch() {
  local need_mib=$1 free_kib
  shift
  mkdir -p "$deps" || fail "cannot write $deps"
  free_kib=$(df -Pk "$deps" | awk 'NR==2 {print $4}')
  ((free_kib > need_mib * 1024)) || fail "$deps needs $need_mib MiB of free disk, $((free_kib / 1024)) MiB are free"
  say "fetching into $deps: $*"
  scratch=$(mktemp -d "$deps/fetch.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  # The wheels hold C++ headers and libraries; the Python version they were built for does not matter to us.
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_24_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
    --disable-pip-version-check -d "$scratch" "$@" || fail "pip could not fetch $*"
  python3 - "$scratch" <<'PY'
import glob, os, sys, zipfile
scratch = sys.argv[1]
for wheel in glob.glob(os.path.join(scratch, "*.whl")):
    with zipfile.ZipFile(wheel) as z:
        keep = [n for n in z.namelist()
                if n.startswith(("torch/include/", "torch/lib/", "libucx/", "libucx_cu13.libs/", "nvidia/"))
                and not n.endswith((".py", ".pyc")) and "libtorch_python" not in n]
        z.extractall(os.path.join(scratch, "x"), keep)
        for n in z.namelist():
            if ".dist-info/" in n and os.path.basename(n).lower().startswith(("licen", "notice")):
                terms = os.path.join(scratch, "x", "licenses", n.split("-")[0] + "." + os.path.basename(n))
                os.makedirs(os.path.dirname(terms), exist_ok=True)
                with open(terms, "wb") as f:
                    f.write(z.read(n))
PY
}

# A bundle (`make bundle`) has to contain the licences of what it packs.
keep_licenses() {
  if [[ -d "$scratch/x/licenses" ]]; then mkdir -p "$deps/licenses" && cp "$scratch"/x/licenses/* "$deps/licenses/"; fi
}

if [[ "$(cat "$stamp" 2>/dev/null)" != "${wheels[*]}" ]]; then
  fetch 3072 "${wheels[@]}"
  rm -rf "$deps"/{torch,ucx,cuda,libucx_cu13.libs} "$gpu_stamp"
  mv "$scratch/x/torch" "$deps/torch"
  mv "$scratch/x/libucx" "$deps/ucx"
  [[ ! -d "$scratch/x/libucx_cu13.libs" ]] || mv "$scratch/x/libucx_cu13.libs" "$deps/libucx_cu13.libs"
  mv "$scratch/x/nvidia" "$deps/cuda"
  keep_licenses
  rm -rf "$scratch"
  printf '%s' "${wheels[*]}" >"$stamp"
  say "dependencies are in $deps ($(du -sh "$deps" | cut -f1))"
fi

# Only where the GPU library is built (cmake/weft_cuda.cmake): what LibTorch's CUDA half needs when it is loaded and the toolkit does not
# have. Without it that library is built all the same, and cannot be loaded.
[[ $needs != run ]] || exit 0
nvcc=
for candidate in "${CUDACXX:-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" /usr/local/cuda/bin/nvcc \
  "$(command -v nvcc || true)"; do
  if [[ -x "$candidate" ]]; then nvcc=$candidate && break; fi
done
if [[ "${WEFT_CUDA:-AUTO}" != OFF && -n "$nvcc" ]] && [[ "$("$nvcc" --version)" == *"release 13."* ]]; then
  # It may be a script in a folder of its own; the compiler itself knows where its toolkit is.
  toolkit=$({ "$nvcc" --dryrun none.cu 2>&1 || true; } | sed -n 's/^#\$ TOP=//p')
  [[ -d "$toolkit/lib64" ]] || fail "cannot tell where the CUDA toolkit of $nvcc is; set CUDA_HOME, or WEFT_CUDA=OFF to build without it"
  lacking=()
  for library in "${gpu_libraries[@]}"; do
    [[ -e "$toolkit/lib64/${library%% *}" ]] || lacking+=("${library##* }")
  done
  if ((${#lacking[@]})) && [[ "$(cat "$gpu_stamp" 2>/dev/null)" != "${lacking[*]}" ]]; then
    fetch 3072 "${lacking[@]}"
    (cd "$scratch/x/nvidia" && find . -name 'lib*.so.*' -exec install -D -m 644 {} "$OLDPWD/$deps/cuda/{}" \;)
    keep_licenses
    rm -rf "$scratch"
    printf '%s' "${lacking[*]}" >"$gpu_stamp"
    say "the GPU library's dependencies are in $deps/cuda ($(du -sh "$deps/cuda" | cut -f1))"
  fi
fi
# A wheel keeps no execute permission; the bench runs this one.
[[ ! -e "$deps/ucx/bin/ucx_perftest" ]] || chmod +x "$deps/ucx/bin/ucx_perftest"
