#!/bin/sh
# Builds the OpenMP runtime and measures two threads beside two busy processes on two CPUs, by who is where; see README.md. Three
# minutes and a build, as root; runs beside which others want CPUs are left out. ROUNDS=N for more or fewer rounds than 6.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
[ "$(nproc)" = 2 ] || { echo "this is about two CPUs (taskset -c 0,1)" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
"$root/tools/install-build-needs.sh" bench-openmp
(cd "$root" && cargo build --release --locked -p amdahl-libgomp)
mkdir "$scratch/lib"
"$root/abi/libgomp/link.sh" "$target/release/libamdahl_libgomp.a" "$scratch/lib/libgomp.so.1"
cd "$root/benches/openmp/programs"
flags='-std=gnu11 -O2 -ffp-contract=off'
gcc $flags -fopenmp main.c lu.c cg.c ua.c mg.c ft.c ep.c tasks.c -lm -ldl -o "$scratch/kernels"
gcc $flags load.c -o "$scratch/load"
python3 "$here/run.py" "$scratch" "$here"
{
    sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1
    echo "$(nproc) CPUs, Linux $(uname -r), commit $(git -C "$root" rev-parse --short HEAD)"
} >"$here/machine.txt"
