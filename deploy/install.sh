#!/usr/bin/env bash
# Installs what a build has made, so that it runs without the build folder: programs, libraries, units of systemd, completion,
# manual pages, documents, rules for Prometheus and dashboards for Grafana.
#
#   deploy/install.sh BUILD [PREFIX] [DESTDIR]   BUILD: a finished build, as build/release; PREFIX: /usr/local; DESTDIR: a folder
#                                                that stands for /, for packages
#
# The programs lie in PREFIX/lib/weft with the libraries that a machine may lack (deploy/bundle.sh), and PREFIX/bin has links to
# them. LibTorch is not installed: bin/weft-worker looks for it and says what to do if there is none. Files in /etc/weft that are
# there stay as they are.
set -euo pipefail
source_folder=$(cd "$(dirname "$0")/.." && pwd)
build=$(realpath "${1:?usage: deploy/install.sh BUILD [PREFIX] [DESTDIR]}")
prefix=${2:-/usr/local}
destination=${3:-}
[[ "$prefix" == /* ]] || { echo "install: PREFIX is $prefix; it has to be a path from / on" >&2 && exit 64; }
[[ -w "$(dirname "$destination$prefix")" || -w "$destination$prefix" || -n "$destination" ]] ||
  { echo "install: $prefix cannot be written; run it with sudo, or choose another PREFIX" >&2 && exit 77; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$source_folder/deploy/bundle.sh" "$build" "$scratch"
bundle=$(find "$scratch" -mindepth 1 -maxdepth 1 -type d)

programs=$destination$prefix/lib/weft
share=$destination$prefix/share
rm -rf "$programs"
mkdir -p "$programs" "$destination$prefix/bin"
cp -a "$bundle"/{bin,libexec,lib} "$programs/"
for program in weft weft-worker weft-coordinator; do ln -sfn "../lib/weft/bin/$program" "$destination$prefix/bin/$program"; done

install -d "$share"/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$build/bin/weft" completion bash >"$share/bash-completion/completions/weft"
"$build/bin/weft" completion zsh >"$share/zsh/vendor-completions/_weft"
"$build/bin/weft" completion fish >"$share/fish/vendor_completions.d/weft.fish"

rm -f "$share"/man/man[18]/weft{,-*}.[18].gz
"$source_folder/deploy/man.sh" "$build" "$share/man" || echo "install: Weft is installed without manual pages" >&2

units=$destination$prefix/lib/systemd/system
install -d "$units" "$destination$prefix/lib/sysusers.d" "$destination/etc/weft"
for unit in "$source_folder"/deploy/systemd/*.{service,target}; do
  sed "s|/usr/bin/|$prefix/bin/|; s|/usr/share/|$prefix/share/|" "$unit" >"$units/$(basename "$unit")"
done
install -m 644 "$source_folder/deploy/systemd/weft.sysusers" "$destination$prefix/lib/sysusers.d/weft.conf"
for settings in coordinator.conf worker.conf; do
  [[ -e "$destination/etc/weft/$settings" ]] || install -m 644 "$source_folder/deploy/systemd/$settings" "$destination/etc/weft/"
done

rm -rf "$share/weft" "$share/doc/weft"
install -d "$share/weft" "$share/doc/weft"
cp -a "$bundle/runs" "$source_folder/deploy/prometheus" "$source_folder/deploy/grafana" "$share/weft/"
cp -a "$bundle"/licenses "$bundle"/{LICENSE,NOTICE,THIRD_PARTY_NOTICES.md} "$share/doc/weft/"
cp -a "$source_folder"/docs/{guide,schedules,pictures} "$source_folder"/{README.md,CHANGELOG.md} "$share/doc/weft/"
find "$programs" "$share/weft" "$share/doc/weft" -type d -exec chmod 755 {} +
echo "install: Weft is in $destination$prefix/lib/weft, its commands in $destination$prefix/bin" >&2
