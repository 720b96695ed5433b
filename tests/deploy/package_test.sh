#!/usr/bin/env bash
# Makes the Debian packages, and installs, uses, upgrades, removes and purges them on a copy of this machine that is thrown away.
#
#   tests/deploy/package_test.sh BUILD
#
# The copy is an overlay over /, in a mount namespace of its own. Exits with 77, and one line that says why, where it may not make one.
set -euo pipefail
source_folder=$(cd "$(dirname "$0")/../.." && pwd)
build=$(realpath "$1")

skip() { echo "SKIPPED: the package was not tried: $*"; exit 77; }
((EUID == 0)) || skip "mounting an overlay needs root"
command -v dpkg >/dev/null && command -v cpack >/dev/null || skip "there is no dpkg or no cpack"
unshare -m true 2>/dev/null || skip "this machine lets us make no mount namespace"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$source_folder/deploy/deb.sh" "$build" "$work"
export package=$(ls "$work"/weft_*.deb) development=$(ls "$work"/weft-dev_*.deb) work
size=$(stat -c %s "$package")
((size < 64 * 1024 * 1024)) || { echo "FAILED: $package has $size bytes"; exit 1; }
fail() { echo "FAILED: $*"; exit 1; }
echo "- has a manual page of each program and command, which readers take and which have no date"
# Read from the package: a small system may leave pages out when it installs.
dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work" ./usr/share/man
pages=$work/usr/share/man
names=(man1/weft.1 man8/weft-coordinator.8 man8/weft-worker.8)
for command in $("$build/bin/weft" completion bash | sed -n 's/^    \([a-z-]*\))$/\1/p'); do names+=("man1/weft-$command.1"); done
((${#names[@]} > 20)) || fail "only these pages are expected: ${names[*]}"
for name in "${names[@]}"; do
  [[ -s $pages/$name.gz ]] || fail "there is no page $name"
done
# No pipe into `grep -q`: it leaves at the first match, and the program before it then fails of SIGPIPE.
for page in "$pages"/man*/*.gz; do
  grep -q ' - [a-z]' <<<"$(lexgrog "$page")" || fail "lexgrog does not take $page"
  said=$(zcat "$page" | mandoc -Tlint -W warning | grep -v 'missing date' || true)
  [[ -z "$said" ]] || fail "mandoc says of $page: $said"
  ! grep -qE '^\.TH.*20[0-9][0-9]|/root|/home' <<<"$(zcat "$page")" || fail "$page tells of this machine or of today"
done
grep -q -- '--detach' <<<"$(man -l "$pages/man1/weft-submit.1.gz" | col -b)" || fail "weft-submit(1) does not tell of --detach"
"$source_folder/deploy/man.sh" "$build" "$work/again"
diff -r "$pages" "$work/again" || fail "made again, the pages are others"

unshare -m bash -eu <<'OUTSIDE' || { [[ $? != 77 ]] || skip "the kernel mounts no overlay here"; echo "FAILED"; exit 1; }
mount --make-rprivate /
mkdir "$work/upper"
mount -t tmpfs none "$work/upper"
mkdir "$work"/upper/{files,work} "$work/root"
mount -t overlay none -o "lowerdir=/,upperdir=$work/upper/files,workdir=$work/upper/work" "$work/root" 2>/dev/null || exit 77
mount --rbind /proc "$work/root/proc"
mount --rbind /dev "$work/root/dev"
mount -t tmpfs none "$work/root/tmp"
mount -t tmpfs none "$work/root/run"
cp "$package" "$work/root/tmp/weft.deb"
cp "$development" "$work/root/tmp/weft-dev.deb"
exec chroot "$work/root" /bin/bash -eu <<'INSIDE'
fail() { echo "FAILED: $*"; exit 1; }
export LC_ALL=C
echo "- installs"
dpkg -i /tmp/weft.deb >/tmp/log 2>&1 || { cat /tmp/log; fail "dpkg -i"; }
getent passwd weft >/dev/null || fail "there is no user weft"
cd /
[[ "$(readlink -f /usr/bin/weft)" == /usr/lib/weft/bin/weft ]] || fail "/usr/bin/weft is $(readlink -f /usr/bin/weft)"
makespan=$(weft simulate 1f1b --stages 4 --microbatches 8 -o json | grep -o '"makespan":[0-9.]*')
[[ "$makespan" == '"makespan":22.0' ]] || fail "weft simulate says $makespan"
weft-coordinator --version >/dev/null || fail "weft-coordinator --version"
for file in /usr/share/bash-completion/completions/weft /usr/share/weft/prometheus/weft.rules.yaml /usr/share/weft/runs/tiny.yaml \
  /usr/share/weft/grafana/dashboards/weft-fleet.json /usr/share/doc/weft/guide/deploying.md /etc/weft/worker.conf; do
  [[ -s $file ]] || fail "$file is missing"
done
if command -v systemd-analyze >/dev/null; then
  said=$(systemd-analyze verify --man=no /usr/lib/systemd/system/weft-{coordinator.service,worker@.service} 2>&1 | grep weft || true)
  [[ -z "$said" ]] || fail "systemd-analyze verify: $said"
fi
echo "- builds clients with weft-dev, beside it"
dpkg -i /tmp/weft-dev.deb >/tmp/log 2>&1 || { cat /tmp/log; fail "dpkg -i weft-dev"; }
[[ -s /usr/include/weft/v1/runs.proto ]] || fail "there are no protos"
g++ -std=c++17 /usr/share/doc/weft-dev/examples/cpp_client/main.cc -o /tmp/submit_run $(pkg-config --cflags --libs weft-client) ||
  fail "the example does not compile"
said=$(/tmp/submit_run 1 unix:/tmp/nobody 2>&1) && fail "the example finds a coordinator where there is none"
[[ "$said" == *"coordinator at unix:/tmp/nobody unreachable"* ]] || fail "the example says $said"
dpkg -r weft-dev >/tmp/log 2>&1 || { cat /tmp/log; fail "dpkg -r weft-dev"; }
[[ ! -e /usr/include/weft && ! -e /usr/lib/libweft_client.so ]] || fail "weft-dev leaves files behind"
echo "- keeps settings when it is installed again"
echo "WEFT_DEVICE=auto" >>/etc/weft/worker.conf
dpkg -i --force-confdef --force-confold /tmp/weft.deb >/tmp/log 2>&1 || { cat /tmp/log; fail "dpkg -i, again"; }
grep -qx WEFT_DEVICE=auto /etc/weft/worker.conf || fail "the settings are lost"
echo "- goes, and leaves what is the user's"
mkdir -p /var/lib/weft/runs/mine
dpkg -r weft >/tmp/log 2>&1 || { cat /tmp/log; fail "dpkg -r"; }
[[ ! -e /usr/bin/weft && ! -e /usr/lib/weft ]] || fail "programs are left behind"
[[ -e /etc/weft/worker.conf ]] || fail "removing took the settings"
dpkg -P weft >/tmp/log 2>&1 || { cat /tmp/log; fail "dpkg -P"; }
[[ ! -e /etc/weft/worker.conf ]] || fail "purging left the settings"
[[ -d /var/lib/weft/runs/mine ]] || fail "purging took the runs"
INSIDE
OUTSIDE
echo "the package installs, runs and goes"
