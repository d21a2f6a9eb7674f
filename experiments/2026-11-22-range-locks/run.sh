#!/bin/sh
# Measures again, and draws the plots: about a minute and a half, with nothing else on the machine.
set -eu
cd "$(dirname "$0")"
cargo run --release --locked -p amdahl-bench-memory -- --only lock --out .
{
    uname -srm
    lscpu | grep -E 'Model name|^CPU\(s\)|Thread|L2|L3|NUMA node\(s\)|Hypervisor'
    rustc --version
    echo "commit $(git rev-parse --short HEAD)"
} >machine.txt
python3 plot.py memory.json
