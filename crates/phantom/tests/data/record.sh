#!/bin/sh
# record.sh AMDAHL: records the traces of `tests/recorded.rs` anew, as root, on two CPUs: AMDAHL is `target/release/amdahl`.
set -eu
amdahl=$(realpath "$1")
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
for case in beside quota taken; do
    "$amdahl" sched record --system -q -o "$folder/$case" -- taskset -c 0,1 python3 load.py "$case" "$case.csv" > "$folder/report"
    cargo run --locked -q -p amdahl-phantom --example trim -- "$folder/$case/events" "$case.parquet"
done
