#!/bin/sh
# Measures what steps cost and which lines move (half a minute, alone on the machine), and simulates larger ones (a minute or two). $QUIETLY
# is a command put before the programs that measure, $AMDAHL an amdahl that is built already.
set -eu
cd "$(dirname "$0")"
cargo build --release --locked -q -p amdahl-bench-memory
target=$(cargo metadata --format-version 1 --no-deps --locked | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
if [ -z "${AMDAHL:-}" ]; then
    cargo build --release --locked -q -p amdahl
    AMDAHL=$target/release/amdahl
fi
# shellcheck disable=SC2086 # $QUIETLY may be several words
${QUIETLY:-} "$target/release/amdahl-bench-memory" --only lines --out . >steps.txt
# shellcheck disable=SC2086
${QUIETLY:-} "$AMDAHL" sim calibrate -q -o costs-measured.json
{
    uname -srm
    lscpu | grep -E 'Model name|^CPU family|^Model:|^CPU\(s\)|L2|L3|Hypervisor'
    rustc --version
    echo "commit $(git rev-parse --short HEAD)"
} >machine.txt
python3 model.py "$AMDAHL"
