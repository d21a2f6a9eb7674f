#!/bin/sh
# Measures again and draws again: run.sh, with nothing else on the machine.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cargo run --release --locked --manifest-path "$root/Cargo.toml" -p amdahl-bench-memory -- --only spread --out "$here" >"$here/table.txt"
{
    uname -srm
    lscpu | grep -E 'Model name|^CPU\(s\)|Thread|L2|L3|NUMA node\(s\)|Hypervisor'
    ldd --version | head -n 1
    rustc --version
    echo "commit $(git -C "$root" rev-parse --short HEAD)"
} >"$here/machine.txt"
python3 "$here/plot.py" "$here/memory.json" "$here/plot.svg"
