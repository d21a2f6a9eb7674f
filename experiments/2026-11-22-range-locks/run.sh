#!/bin/sh
# Measures again, and draws the plots: about half a minute, with nothing else on the machine.
set -eu
cd "$(dirname "$0")"
cargo run --release --locked -p amdahl-bench-memory -- --only lock --out .
python3 plot.py memory.json
