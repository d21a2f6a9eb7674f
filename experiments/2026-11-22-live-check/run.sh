#!/bin/sh
# Measures what this machine's operations cost, runs the programs in the pool, simulates them, and writes
# results.md, results.csv and the costs that were simulated with. About a minute, alone on the machine.
set -eu
cd "$(dirname "$0")"
cargo build --release -p amdahl -p amdahl-bench-live
cargo run --release -q -p amdahl -- sim calibrate -o costs.json
exec cargo run --release -q -p amdahl-bench-live -- --costs costs.json --table . "$@"
