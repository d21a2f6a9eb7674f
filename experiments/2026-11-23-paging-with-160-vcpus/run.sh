#!/bin/sh
# Simulates all of it (a minute) and writes results.csv, results.md and rate.svg. The same commit gives the same figures.
set -eu
cd "$(dirname "$0")"
cargo build --release --locked -q -p amdahl
target=$(cargo metadata --format-version 1 --no-deps --locked | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
exec python3 run.py "$target/release/amdahl"
