#!/bin/sh
# Simulates all of it again and writes results.md and results.csv; sections can be named: ./run.sh hackbench nix
set -eu
cd "$(dirname "$0")"
exec cargo run --release -p amdahl-des --example published -- . "$@"
