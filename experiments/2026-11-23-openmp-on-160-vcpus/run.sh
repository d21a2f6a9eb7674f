#!/bin/sh
# Simulates all of it (two minutes) and writes results.csv and results.md. The same commit gives the same figures.
set -eu
cd "$(dirname "$0")"
cargo build --release --locked -q -p amdahl
target=$(cargo metadata --format-version 1 --no-deps --locked | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
exec python3 run.py "$target/release/amdahl"
