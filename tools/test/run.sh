#!/bin/sh
# Runs checks one after the other, goes on after a failure, and sums up at the end: which steps
# failed, what was SKIPPED and why, and `N passed, N failed, N skipped` over everything.
#
#   run.sh all       lint, BPF objects, tests of all crates, examples, loom, GCC's tests of libgomp,
#                    then the planted programs
#   run.sh lint      formatting, clippy, documentation, licences
#   run.sh bpf       the BPF objects are the build of their source
#   run.sh tests     tests of all crates
#   run.sh examples  examples that show how a crate is used
#   run.sh interleavings  lock-free code under loom
#   run.sh conformance  GCC's tests of libgomp against our runtime
#   run.sh planted   the planted programs
#
# The long tier, which `all` leaves out, of the parts for shared memory and of those that move memory:
#
#   run.sh long      all of these
#   run.sh miri      under Miri, on a nightly compiler
#   run.sh sanitizers  with AddressSanitizer and ThreadSanitizer, on a nightly compiler
#   run.sh arm64     built for arm64, run by QEMU
#   run.sh i686      built for 32 bits
#   run.sh minutes   tests that take minutes each; AMDAHL_STRESS_S=N has each stress take N seconds
#   run.sh seeds     faults by AMDAHL_SEEDS seeds (2000; of migrations 300, of their recovery 600, of `pager serve` over TCP 300)
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
    : >"$log"
    tools/test/watch.sh "$log" $$ &
    watcher=$!
    # POSIX sh has no pipefail: the exit code takes the way around the pipe.
    echo 1 >"$logs/status"
    { "$@" 2>&1; echo $? >"$logs/status"; } | tee "$log"
    status=$(cat "$logs/status")
    kill "$watcher" 2>/dev/null
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
    if [ "$status" = 0 ] && [ "$1$2$3" = 000 ]; then
        status="none: there was no test"
    fi
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
    # Without a standard library, and so for kernels and firmware.
    check no-std $cargo check -p amdahl-range-alloc --no-default-features --locked
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
    openmp_runtime
    # Output of tests that pass is shown too: it tells what was skipped inside them.
    suite tools/test/count-cargo.awk tests \
        $cargo test --workspace --locked --no-fail-fast -- --show-output
}

# What shows a newcomer how a crate is used, as it was built for the tests. The other examples measure, or need a privilege, a
# program or a file.
examples() {
    # All at once, as the tests have built them: one by one, each has features and so libraries of its own.
    check examples $cargo build -q --locked --workspace --examples
    for of in range-alloc/shared range-alloc/vmalloc range-lock/address_space range-lock/file_copy \
        spread/count spread/latency spread/steal \
        image/snapshots placement/compare pool/per_llc pool/pipeline pool/prefault pool/sort; do
        # In less memory than it takes by itself.
        case $of in pool/prefault) mib=64 ;; *) mib= ;; esac
        check "example-${of%/*}-${of#*/}" "$target/debug/examples/${of#*/}" $mib
    done
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
            "$@" -p amdahl-pager --lib models || failed=1
            # The models of tasks have no such word in their names: under loom there is nothing else.
            "$@" -p amdahl-openmp --lib || failed=1
            "$@" -p amdahl-phantom-page --lib models || failed=1
            exit $failed' sh $cargo test --release --locked
}

# The parts for shared memory, which have most of the unsafe code that threads share.
parts='-p amdahl-range-alloc -p amdahl-range-lock -p amdahl-spread'
# What runs threads. Their tests leave memory behind on purpose: blocks of teams, which are never freed, and payloads that panic when they are dropped.
runtimes='-p amdahl-openmp -p amdahl-phantom-page -p amdahl-pool'

has_nightly() {
    if ! cargo +nightly --version >/dev/null 2>&1; then
        skip "$1" "there is no nightly compiler; rustup toolchain install nightly"
    elif [ ! -d "$(rustc +nightly --print sysroot)/lib/rustlib/src" ]; then
        skip "$1" "nightly lacks its sources; rustup +nightly component add rust-src"
    elif [ "$1" = miri ] && ! cargo +nightly miri --version >/dev/null 2>&1; then
        skip "$1" "nightly lacks Miri; rustup +nightly component add miri"
    else
        return 0
    fi
    return 1
}

# Undefined behaviour and data races, by interpretation. What Miri cannot do, tests leave out by `cfg!(miri)`.
miri() {
    has_nightly miri || return
    suite tools/test/count-cargo.awk miri \
        env MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR="$target/miri" \
        cargo +nightly miri test --locked --no-fail-fast $parts --lib --tests -- --show-output
    suite tools/test/count-cargo.awk miri-pool \
        env MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR="$target/miri" \
        cargo +nightly miri test --locked --no-fail-fast -p amdahl-pool --lib -- --show-output
}

# The same by instrumentation: faster, sees less.
sanitizers() {
    has_nightly sanitizers || return
    host=$(rustc -vV | sed -n 's/^host: //p')
    for sanitizer in address thread; do
        sanitized() {
            suite tools/test/count-cargo.awk "sanitizer-$sanitizer-$1" \
                env RUSTFLAGS="-Zsanitizer=$sanitizer" CARGO_TARGET_DIR="$target/sanitizers" \
                ASAN_OPTIONS="$2:allocator_may_return_null=1" TSAN_OPTIONS="suppressions=$PWD/tools/test/fences.tsan:allocator_may_return_null=1" \
                cargo +nightly test --locked --no-fail-fast -Zbuild-std --target "$host" $3 --lib --tests -- --show-output
        }
        sanitized parts detect_leaks=1 "$parts"
        sanitized runtimes detect_leaks=0 "$runtimes"
    done
}

arm64() {
    arm=aarch64-unknown-linux-gnu
    if ! command -v qemu-aarch64-static >/dev/null || ! command -v aarch64-linux-gnu-gcc >/dev/null; then
        skip arm64 "needs qemu-user-static and gcc-aarch64-linux-gnu"
    elif [ ! -d "$(rustc --print sysroot)/lib/rustlib/$arm" ]; then
        skip arm64 "there is no standard library; rustup target add $arm"
    else
        suite tools/test/count-cargo.awk arm64 \
            env CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
            CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64-static -L /usr/aarch64-linux-gnu' \
            CARGO_PROFILE_DEV_OPT_LEVEL=1 \
            $cargo test --locked --no-fail-fast --target $arm $parts -p amdahl-openmp -p amdahl-phantom-page --lib --tests -- --show-output
        # Its tests run what the machine's own compiler makes.
        check arm64-libgomp $cargo build --locked --target $arm -p amdahl-libgomp
    fi
}

# Addresses of 64 bits on machines of 32.
i686() {
    if ! echo 'int main(void) { return 0; }' | gcc -m32 -x c -o /dev/null - 2>/dev/null; then
        skip i686 "needs gcc-multilib"
    elif [ ! -d "$(rustc --print sysroot)/lib/rustlib/i686-unknown-linux-gnu" ]; then
        skip i686 "there is no standard library; rustup target add i686-unknown-linux-gnu"
    else
        suite tools/test/count-cargo.awk i686 env CARGO_PROFILE_DEV_OPT_LEVEL=1 \
            $cargo test --locked --no-fail-fast --target i686-unknown-linux-gnu $parts -p amdahl-range-alloc-abi --lib --tests -- --show-output
    fi
}

# Tests that take minutes each.
minutes() {
    suite tools/test/count-cargo.awk minutes \
        $cargo test --release --locked --no-fail-fast $parts --tests -- --ignored --show-output
    suite tools/test/count-cargo.awk minutes-migrate \
        $cargo test --release --locked --no-fail-fast -p amdahl-migrate --tests -- --ignored --show-output
}

# Many more faults than `tests` has time for, each by a seed that repeats it.
seeds() {
    # The package, the test binary, how many (a migration takes seconds), and what chooses among the binary's tests.
    for of in 'amdahl-pager faults 2000 seeds_of' 'amdahl-remote seeds 2000' 'amdahl-migrate seeds 300' 'amdahl-migrate recovery 600' \
        'amdahl cli 300 serving::seeds'; do
        # shellcheck disable=SC2086 # words
        set -- $of
        suite tools/test/count-cargo.awk "seeds-$1-$2" env AMDAHL_SEEDS="${AMDAHL_SEEDS:-$3}" \
            $cargo test --release --locked -p "$1" --test "$2" -- --show-output ${4:-}
    done
}

# Linked anew: programs of tests never load the library of an earlier build.
openmp_runtime() {
    # shellcheck disable=SC2016 # for the inner shell
    check openmp-runtime sh -c '"$@" && abi/libgomp/link.sh "$0/libamdahl_libgomp.a" "$0/openmp/libgomp.so.1"' \
        "$target/release" $cargo build --release --locked -p amdahl-libgomp -p amdahl-conformance
}

# GCC's own tests of libgomp against our runtime. They are compiled once and kept; where ours fails, GCC's is asked.
conformance() {
    openmp_runtime
    [ "$status" = 0 ] || return
    # It ends with 3 where the suite or a compiler is missing, and has said so.
    # shellcheck disable=SC2016 # for the inner shell
    suite tools/test/count-conformance.awk conformance \
        sh -c '"$@" || [ $? = 3 ]' sh \
        "$target/release/amdahl-conformance" --reference gcc gcc=- "amdahl=$target/release/openmp"
}

# Measures CPU time: nothing else may run beside.
planted() {
    # What the other tests are built of will do: a release build is minutes more, and finds the same.
    suite tools/test/count-planted.awk planted \
        $cargo test --locked -p amdahl --test planted
    if [ -e planted/unprivileged.toml ]; then
        # Found beside the command; an ordinary user's probe uses it.
        step preload-library $cargo build --locked -p amdahl-preload
        suite tools/test/count-planted.awk planted-unprivileged \
            env PLANTED_PROBE=proc $cargo test --locked -p amdahl --test planted
    fi
}

case $what in
all)
    lint
    bpf
    tests
    examples
    interleavings
    conformance
    planted
    ;;
long)
    # Single tests take that long.
    export QUIET_MAX=7200
    miri
    sanitizers
    arm64
    i686
    minutes
    seeds
    ;;
lint | bpf | tests | examples | interleavings | conformance | planted) "$what" ;;
miri | sanitizers | arm64 | i686 | minutes | seeds)
    export QUIET_MAX=7200
    "$what"
    ;;
*)
    echo "usage: $0 all|lint|bpf|tests|examples|interleavings|conformance|planted|long|miri|sanitizers|arm64|i686|minutes|seeds" >&2
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
        tests | interleavings | miri* | sanitizer-* | arm64 | i686 | minutes* | seeds-*) awk '/^failures:$/ { on = 1 } on; /^test result:/ { on = 0 }' "$logs/$name.log" | tail -n 200 ;;
        conformance) grep -E 'FAILED' "$logs/$name.log" ;;
        planted*) grep -E 'FAILED|try: ' "$logs/$name.log" ;;
        *) tail -n 60 "$logs/$name.log" ;;
        esac
    done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
