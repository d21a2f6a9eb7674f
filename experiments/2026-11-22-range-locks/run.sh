#!/bin/sh
# Measures again, and draws the plots: about a minute and a half, with nothing else on the machine. $QUIETLY is a command put before the
# program that measures.
set -eu
cd "$(dirname "$0")"
cargo build --release --locked -q -p amdahl-bench-memory
target=$(cargo metadata --format-version 1 --no-deps --locked | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
# shellcheck disable=SC2086 # $QUIETLY may be several words
${QUIETLY:-} "$target/release/amdahl-bench-memory" --only lock --out . >table.txt
{
    uname -srm
    lscpu | grep -E 'Model name|^CPU family|^Model:|^CPU\(s\)|Thread|L2|L3|NUMA node\(s\)|Hypervisor'
    rustc --version
    echo "commit $(git rev-parse --short HEAD)"
} >machine.txt
python3 plot.py memory.json
