#!/bin/sh
# Runs all planted programs, by BPF as root and without privileges, and keeps the tables.
# Nothing else may run on the machine meanwhile.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 1

tools/install-build-needs.sh test || exit 1
# As many runs as `amdahl scale` makes unless told otherwise.
PLANTED_RUNS=3 tools/test/run.sh planted
cp "target/planted/table.md" "target/planted/table.json" \
    "target/planted/table-proc.md" "target/planted/table-proc.json" "$here/"
{
    sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1
    echo "$(nproc) CPUs, Linux $(uname -r), commit $(git rev-parse --short HEAD)"
} >"$here/machine.txt"
