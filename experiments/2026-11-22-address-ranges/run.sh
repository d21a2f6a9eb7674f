#!/bin/sh
# Measures (about two minutes, alone on the machine) and draws.
set -eu
cd "$(dirname "$0")"
cargo run --release --locked -p amdahl-bench-memory -- --only alloc --out . | tee table.txt
python3 plot.py .
