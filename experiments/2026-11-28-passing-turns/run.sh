#!/bin/sh
# Builds the OpenMP runtime as it is and as it was before turns were passed, and measures both beside busy processes. About ten
# minutes and two builds; nothing else may run on the machine. ROUNDS=N for more or fewer rounds than 8.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
before=9a4774aa
scratch=$(mktemp -d)
trap 'git -C "$root" worktree remove --force "$scratch/before" 2>/dev/null || true; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
"$root/tools/install-build-needs.sh" bench-openmp
mkdir "$scratch/programs"
git -C "$root" worktree add --quiet --detach "$scratch/before" $before
# Two trees in one folder for what is built would overwrite each other's library.
for version in before now; do
    tree=$root
    target=${CARGO_TARGET_DIR:-$root/target}
    [ $version = now ] || { tree=$scratch/before && target=$scratch/target; }
    (cd "$tree" && CARGO_TARGET_DIR=$target cargo build --release --locked -p amdahl-libgomp)
    mkdir -p "$scratch/lib-$version"
    "$tree/abi/libgomp/link.sh" "$target/release/libamdahl_libgomp.a" "$scratch/lib-$version/libgomp.so.1"
done
cmp -s "$scratch/lib-before/libgomp.so.1" "$scratch/lib-now/libgomp.so.1" && { echo "both libraries are the same" >&2; exit 1; }
cd "$root/benches/openmp/programs"
flags='-std=gnu11 -O2 -ffp-contract=off'
gcc $flags -fopenmp main.c lu.c cg.c ua.c mg.c ft.c ep.c tasks.c -lm -ldl -o "$scratch/programs/kernels"
gcc $flags load.c -o "$scratch/programs/load"
gcc $flags -fopenmp "$here/phases.c" -o "$scratch/programs/phases"
python3 "$here/run.py" "$scratch/programs" "$here" before="$scratch/lib-before" now="$scratch/lib-now" \
    before-again="$scratch/lib-before"
{
    sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1
    echo "$(nproc) CPUs, Linux $(uname -r), commit $(git -C "$root" rev-parse --short HEAD), before: $before"
} >"$here/machine.txt"
