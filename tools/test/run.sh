#!/bin/sh
# Runs checks one after the other, goes on after a failure, and sums up at the end: which steps
# failed, what was SKIPPED and why, and `N passed, N failed, N skipped` over everything.
#
#   run.sh all       lint, BPF objects, tests of all crates, loom, then the planted programs
#   run.sh lint      formatting, clippy, documentation, licences
#   run.sh bpf       the BPF objects are the build of their source
#   run.sh tests     tests of all crates
#   run.sh interleavings  lock-free code under loom
#   run.sh planted   the planted programs
# shellcheck disable=SC2086 # $CARGO may be several words
set -u

cd "$(dirname "$0")/../.." || exit 1
what=${1:-all}
target=${CARGO_TARGET_DIR:-target}
logs=$target/test-logs
rm -rf "$logs"
mkdir -p "$logs" || exit 1
cargo=${CARGO:-cargo}
begun=$(date +%s)

passed=0
failed=0
skipped=0
failures=
: >"$logs/skipped"

skip() {
    skipped=$((skipped + 1))
    echo "SKIPPED $1: $2" | tee -a "$logs/skipped"
}

# step NAME COMMAND...: runs it with its output on the screen and in a log; `status` is its exit code.
step() {
    name=$1
    shift
    log=$logs/$name.log
    echo
    echo "=== $name: $*"
    # POSIX sh has no pipefail: the exit code takes the way around the pipe.
    { "$@" 2>&1; echo $? >"$logs/status"; } | tee "$log"
    status=$(cat "$logs/status")
}

fail() {
    failures="$failures $1"
    echo "=== FAILED: $1 (exit code $status)"
}

# A step that is one check.
check() {
    step "$@"
    if [ "$status" = 0 ]; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        fail "$name"
    fi
}

# A step that runs many tests, counted by `count` (an awk program) from its log.
suite() {
    count=$1
    shift
    step "$@"
    # shellcheck disable=SC2046 # three numbers
    set -- $(awk -v skipped_list="$logs/skipped" -f "$count" "$log")
    passed=$((passed + $1))
    failed=$((failed + $2))
    skipped=$((skipped + $3))
    if [ "$status" != 0 ]; then
        # Something other than a test: it did not even build.
        if [ "$2" = 0 ]; then failed=$((failed + 1)); fi
        fail "$name"
    fi
}

lint() {
    if $cargo fmt --version >/dev/null 2>&1; then
        check formatting $cargo fmt --all --check
    else
        skip formatting "there is no rustfmt; install the toolchain's component"
    fi
    if $cargo clippy --version >/dev/null 2>&1; then
        check clippy $cargo clippy --workspace --all-targets --locked -- -D warnings
    else
        skip clippy "there is no clippy; install the toolchain's component"
    fi
    check documentation env RUSTDOCFLAGS='-D warnings' \
        $cargo doc --workspace --no-deps --locked
    if $cargo deny --version >/dev/null 2>&1; then
        check licences $cargo deny --all-features check bans licenses sources
    else
        skip licences "there is no cargo-deny; cargo install cargo-deny"
    fi
}

bpf() {
    PATH=/usr/lib/llvm-14/bin:$PATH
    version=$(clang --version 2>/dev/null | sed -n 's/.*clang version \([0-9]*\).*/\1/p' | head -n 1)
    if [ "$version" != 14 ]; then
        skip bpf-objects "the objects are built by clang 14, found: ${version:-none}"
    elif [ ! -e /usr/include/bpf/bpf_helpers.h ]; then
        skip bpf-objects "there are no headers of libbpf"
    else
        check bpf-objects crates/probe/src/bpf/build.sh --check
    fi
}

tests() {
    # Tests load it; cargo does not always build it for them.
    step preload-library $cargo build --locked -p amdahl-preload
    # Output of tests that pass is shown too: it tells what was skipped inside them.
    suite tools/test/count-cargo.awk tests \
        $cargo test --workspace --locked --no-fail-fast -- --show-output
}

# All interleavings of the lock-free code, under a build of its own.
interleavings() {
    # A script of several commands, since each package has its own test.
    suite tools/test/count-cargo.awk interleavings env RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$target/loom" \
        sh -c 'failed=0
            "$@" -p amdahl-spread --lib models || failed=1
            "$@" -p amdahl-range-alloc --test loom || failed=1
            "$@" -p amdahl-range-lock --lib --test loom || failed=1
            "$@" -p amdahl-pool --lib models || failed=1
            exit $failed' sh $cargo test --release --locked
}

# Measures CPU time: nothing else may run beside.
planted() {
    suite tools/test/count-planted.awk planted \
        $cargo test --release --locked -p amdahl --test planted
    if [ -e planted/unprivileged.toml ]; then
        # Found beside the command; an ordinary user's probe uses it.
        step preload-library $cargo build --release --locked -p amdahl-preload
        suite tools/test/count-planted.awk planted-unprivileged \
            env PLANTED_PROBE=proc $cargo test --release --locked -p amdahl --test planted
    fi
}

case $what in
all)
    lint
    bpf
    tests
    interleavings
    planted
    ;;
lint | bpf | tests | interleavings | planted) "$what" ;;
*)
    echo "usage: $0 all|lint|bpf|tests|interleavings|planted" >&2
    exit 2
    ;;
esac

echo
echo "=== summary ($((($(date +%s) - begun + 59) / 60)) minutes)"
if [ -s "$logs/skipped" ]; then
    echo "Skipped:"
    sort "$logs/skipped" | uniq | sed 's/^/  /'
fi
if [ -n "$failures" ]; then
    echo "Failed:$failures (logs in $logs/)"
    for name in $failures; do
        echo "--- $name:"
        case $name in
        tests | interleavings) awk '/^failures:$/ { on = 1 } on; /^test result:/ { on = 0 }' "$logs/$name.log" | tail -n 200 ;;
        planted*) grep -E 'FAILED|try: ' "$logs/$name.log" ;;
        *) tail -n 60 "$logs/$name.log" ;;
        esac
    done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
