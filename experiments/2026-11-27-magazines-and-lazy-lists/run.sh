#!/bin/sh
# Measures (some 40 seconds, after the build). $QUIETLY is a command put before the program that measures.
set -eu
cd "$(dirname "$0")"
cargo build --release --locked -q -p amdahl-bench-memory
target=$(cargo metadata --format-version 1 --no-deps --locked | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
# shellcheck disable=SC2086 # $QUIETLY may be several words
${QUIETLY:-} "$target/release/amdahl-bench-memory" --only alloc-magazines --only alloc-lazy --only alloc-drift --only alloc-growth --out . >table.txt
./plot.py memory.json plot.svg
{
    uname -srm
    lscpu | grep -E 'Model name|^CPU family|^Model:|^CPU\(s\)|L2|L3|Hypervisor'
    rustc --version
    echo "commit $(git rev-parse --short HEAD)"
} >machine.txt
