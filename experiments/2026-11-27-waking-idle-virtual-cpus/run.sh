#!/bin/sh
# What `amdahl scale` costs PostgreSQL where waking an idle CPU is dear, and where idle CPUs poll instead. About 15 minutes, as
# root in a virtual machine whose idle driver is haltpoll; nothing else may run on the machine meanwhile. What is set for it is
# set back. PAIRS=N for more or fewer pairs of runs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
poll=/sys/module/haltpoll/parameters/guest_halt_poll_ns
[ -w $poll ] || {
    echo "$poll cannot be written: not root, or the idle driver is not haltpoll" >&2
    exit 1
}
tools/install-build-needs.sh run
benches/install.sh
cargo build --release --locked -p amdahl -p amdahl-bench
scratch=$(mktemp -d)
before=$(cat $poll)
trap 'echo "$before" >$poll; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
release=${CARGO_TARGET_DIR:-target}/release
for ns in 0 300000; do
    echo $ns >$poll
    "$release/amdahl-bench" scale --tool "$release/amdahl" --no-install --only postgres --alone \
        --pairs "${PAIRS:-40}" --patience 0 --runs 1 --out "$scratch/$ns"
    cp "$scratch/$ns/scale.json" "$here/poll-$ns.json"
done
{
    sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1
    echo "$(nproc) CPUs, Linux $(uname -r), commit $(git rev-parse --short HEAD)"
} >"$here/machine.txt"
