#!/bin/sh
# Which locks make a parallel build wait? Needs root, takes a minute or two; nothing else should run on the
# machine meanwhile.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
cargo build --release --locked -q -p amdahl
tool=${CARGO_TARGET_DIR:-target}/release/amdahl
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cargo fetch --locked -q
"$tool" locks --quiet --owner --probe bpf --output "$scratch/locks" -- \
    cargo build --release --locked -q -p amdahl-sched --target-dir "$scratch/target"
"$tool" report "$scratch/locks" | sed "s|$scratch|{scratch}|g" >"$here/table.txt"
sed -e "s|$PWD|{checkout}|g" -e "s|$scratch|{scratch}|g" -e "s|$HOME|{home}|g" "$scratch/locks/result.json" \
    >"$here/result.json"
{
    sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1
    echo "$(nproc) CPUs, Linux $(uname -r), commit $(git rev-parse --short HEAD)"
} >"$here/machine.txt"
