#!/bin/sh
# What each BPF program of each view takes on hackbench by the kernel's own account, three rounds.
# As root, nothing else on the machine.
set -eu
cd "$(dirname "$0")/../.."
cargo build --release --quiet -p amdahl-probe --example hook_costs
for round in 1 2 3; do
    for view in sched scale locks mem; do
        echo "amdahl $view, round $round"
        "${CARGO_TARGET_DIR:-target}/release/examples/hook_costs" "$view" \
            perf bench sched messaging -g 4 -l 700 | grep -v -e '^#' -e '^$' -e 'Total time'
        echo
    done
done
