#!/bin/sh
# What `amdahl scale` leaves unexplained on real programs, and what it costs them. About an
# hour; nothing else may run on the machine meanwhile.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
make bench-scale
bench=${CARGO_TARGET_DIR:-target}/bench
cp "$bench/scale.json" "$here/"
# Where the checkout lies says nothing.
target=$(cd "$bench/.." && pwd)
sed -e "s|$target/bench/data|{data}|g" -e "s|$target|{target}|g" -e "s|$PWD|{checkout}|g" \
    -e "s|[^ \"]*/amdahl-bench-[A-Za-z0-9-]*|{scratch}|g" \
    "$bench/scale-raw.json" >"$here/scale-raw.json"
{
    sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1
    echo "$(nproc) CPUs, Linux $(uname -r), commit $(git rev-parse --short HEAD)"
} >"$here/machine.txt"
