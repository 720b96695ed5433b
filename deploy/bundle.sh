#!/usr/bin/env bash
# Packs Weft into a folder that runs from anywhere on a Linux machine which has glibc and nothing of what the build needs, except
# LibTorch, which it looks for when a worker starts (deploy/bundle/weft-worker).
#
#   deploy/bundle.sh BUILD [OUT]    BUILD: a finished build, as build/release; OUT: where the folder and its archive go (build)
set -euo pipefail
source_folder=$(cd "$(dirname "$0")/.." && pwd)
build=$(realpath "${1:?usage: deploy/bundle.sh BUILD [OUT]}")
out=$(realpath "${2:-$source_folder/build}")

say() { printf 'bundle: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

for tool in patchelf strip ldd gzip tar; do
  command -v "$tool" >/dev/null || fail "$tool is not here; deploy/setup.sh installs it"
done
for program in weft weft-worker weft-coordinator; do
  [[ -x "$build/bin/$program" ]] || fail "there is no $build/bin/$program; build first (make build)"
done

version=$("$build/bin/weft" --version | awk '{print $2}')
torch_version=$(sed -n 's/^wheels=(torch==\([0-9.]*\) .*/\1/p' "$source_folder/deploy/setup.sh")
[[ -n "$version" && -n "$torch_version" ]] || fail "cannot tell which versions of Weft and LibTorch these are"
name=weft-$version-linux-x86_64
folder=$out/$name
rm -rf "$folder"
mkdir -p "$folder"/{bin,libexec,lib/ucx,runs,licenses}

# The libraries that a file is linked with, found as it finds them: "NAME PATH" a line.
linked() { ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}'; }

# glibc's libraries belong to the machine, whose kernel and files they fit; LibTorch's are LibTorch's. Its own libgomp goes with it,
# and what else is linked with that gets the system's.
of_machine='^(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libutil|libresolv|libanl|libnsl|libmvec)\.so'

add_library() {  # NAME PATH [FOLDER]
  local to=$folder/${3:-lib}/$1
  [[ ! -e "$to" ]] || return 0
  install -m 644 "$(realpath "$2")" "$to"
  sources+=("$2")
}

add_linked() {
  local library path
  while read -r library path; do
    [[ ! "$library" =~ $of_machine ]] || continue
    [[ "$path" != */torch/lib/* ]] || continue
    add_library "$library" "$path"
  done < <(linked "$1")
}

sources=()
install -m 755 "$build/bin/weft" "$build/bin/weft-coordinator" "$folder/bin/"
install -m 755 "$build/bin/weft-worker" "$folder/libexec/weft-worker"
for program in weft weft-coordinator weft-worker; do add_linked "$build/bin/$program"; done

# UCX loads these by itself, from the folder `ucx` beside its library; those for GPUs need the driver, and are passed over without.
ucx=$(linked "$build/bin/weft-worker" | awk '$1 ~ /^libucs\.so/ {print $2}')
[[ -n "$ucx" ]] || fail "weft-worker is not linked with UCX"
for module in "$(dirname "$ucx")"/ucx/lib*.so.0; do
  [[ "$module" != *perftest* ]] || continue
  add_library "$(basename "$module")" "$module" lib/ucx
  add_linked "$module"
done

gpu="without the GPU library (it was not built)"
if [[ -e "$build/lib/libweft_cuda.so" ]]; then
  add_library libweft_cuda.so "$build/lib/libweft_cuda.so"
  while read -r library path; do
    # The library takes CUDA's files from where LibTorch takes them.
    [[ ! "$library" =~ $of_machine && "$path" != */torch/lib/* && "$path" != *cuda* ]] || continue
    add_library "$library" "$path"
  done < <(linked "$build/lib/libweft_cuda.so")
  gpu="with the GPU library, libweft_cuda.so"
fi

say "stripping, and pointing $(find "$folder" -type f | wc -l) files at one another"
find "$folder"/bin "$folder"/libexec "$folder"/lib -type f -exec strip --strip-unneeded {} +
find "$folder"/bin "$folder"/libexec -type f -exec patchelf --set-rpath '$ORIGIN/../lib' {} +
find "$folder"/lib -maxdepth 1 -type f -exec patchelf --set-rpath '$ORIGIN' {} +
find "$folder"/lib/ucx -type f -exec patchelf --set-rpath '$ORIGIN:$ORIGIN/..' {} +

glibc=$("$source_folder/deploy/newest_glibc.sh" "$folder"/bin "$folder"/libexec "$folder"/lib)

sed "s/@torch_version@/$torch_version/g" "$source_folder/deploy/bundle/weft-worker" >"$folder/bin/weft-worker"
chmod 755 "$folder/bin/weft-worker"
for program in weft weft-worker weft-coordinator; do ln -s "bin/$program" "$folder/$program"; done

# Run files, with the two texts that they learn; other data goes beside them.
install -m 644 "$source_folder"/docs/runs/*.yaml "$folder/runs/"
install -m 644 "$source_folder/README.md" "$folder/runs/README.md"
mkdir "$folder/runs/data"
gzip -dc "$source_folder/docs/data/tinyshakespeare.txt.gz" >"$folder/runs/data/text.txt"
sed -i 's|\.\./\.\./README\.md|README.md|; s|\.\./\.\./build/data/|data/|' "$folder"/runs/*.yaml

# Licences of the files that others wrote.
for path in "${sources[@]}"; do
  file=$(realpath "$path")
  package=$({ dpkg -S "$file" || dpkg -S "${file#/usr}"; } 2>/dev/null | head -n 1 | cut -d: -f1 || true)
  [[ -z "$package" || ! -e "/usr/share/doc/$package/copyright" ]] ||
    install -m 644 "/usr/share/doc/$package/copyright" "$folder/licenses/$package"
done

install -m 644 "$source_folder"/{LICENSE,NOTICE,THIRD_PARTY_NOTICES.md} "$folder/"
if [[ -d "$source_folder/build/deps/licenses" ]]; then cp "$source_folder"/build/deps/licenses/* "$folder/licenses/"; fi

sed -e "s/@version@/$version/g; s/@torch_version@/$torch_version/g; s/@glibc@/$glibc/g; s/@gpu@/$gpu/g" \
  "$source_folder/deploy/bundle/README.txt" >"$folder/README.txt"

archive=$out/$name.tar.gz  # a bare system may have nothing else that unpacks
say "packing $archive"
tar -C "$out" --owner=0 --group=0 --sort=name --mtime=@0 -c "$name" | gzip -9n >"$archive.part"
mv "$archive.part" "$archive"
most=$((64 * 1024 * 1024))
size=$(stat -c %s "$archive")
((size < most)) || fail "$archive has $size bytes; $most are the most that it may have"
say "$archive: $((size / 1024)) KiB packed, $(du -sm "$folder" | cut -f1) MiB unpacked, needs glibc $glibc, $gpu"
