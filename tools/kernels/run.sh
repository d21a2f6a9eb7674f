#!/bin/sh
# Boots the Debian kernel of this machine's package sources in QEMU (emulated: slow, but the same
# everywhere) and measures planted programs there: does the recorder load, are causes and code
# right. Then once more as a guest that has its host's page (host-page.sh). The kernel is unpacked, not installed.
#
#   run.sh [x86_64|aarch64]
#
# aarch64 needs the Rust target and a cross compiler (rustup target add
# aarch64-unknown-linux-gnu; gcc-aarch64-linux-gnu). KERNEL=linux-image-... takes another kernel.
set -eu

arch=${1:-x86_64}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
work=$target/kernels/$arch
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"

skip() {
    echo "SKIPPED: kernels ($arch): $*"
    exit 0
}

case $arch in
x86_64)
    debian=amd64 triple=x86_64-unknown-linux-gnu cc=cc strip=strip libraries=
    machine='-cpu max' console=ttyS0
    # The emulated time stamp counter is steady; the watchdog finds it is not when the host is busy.
    quirks='tsc=reliable clocksource=tsc no_timer_check'
    ;;
aarch64)
    debian=arm64 triple=aarch64-unknown-linux-gnu
    cc=aarch64-linux-gnu-gcc strip=aarch64-linux-gnu-strip libraries=/usr/aarch64-linux-gnu/lib
    machine='-M virt -cpu cortex-a72' console=ttyAMA0 quirks=
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$cc"
    ;;
*)
    echo "run.sh: x86_64 or aarch64, not $arch" >&2
    exit 2
    ;;
esac

for tool in "qemu-system-$arch" cpio gzip apt-get dpkg-deb "$cc" "$strip" timeout; do
    command -v "$tool" >/dev/null || skip "there is no $tool"
done
case $(rustc -vV) in
*"host: $triple"*) build= built=$target/release ;;
*)
    [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || skip "Rust's target $triple is not installed"
    build="--target $triple" built=$target/$triple/release
    ;;
esac

# --- kernel and shell -------------------------------------------------------------------

# With a state of its own, so that nothing of the system's is changed.
apt() {
    command=$1
    shift
    "apt-$command" -qq -o APT::Architecture=$debian -o APT::Architectures=$debian \
        -o Dir::State::status=/dev/null -o Dir::State::lists="$work/apt/lists" \
        -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root "$@"
}

apt get update >"$work/apt.log" 2>&1 || skip "the package lists cannot be had (see $work/apt.log)"
kernel=${KERNEL:-$(apt cache depends "linux-image-$debian" 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)}
[ -n "$kernel" ] || skip "there is no package linux-image-$debian: not Debian"
unpack() {
    [ -e "$work/$1/unpacked" ] && return
    rm -rf "${work:?}/$1"
    mkdir -p "$work/$1"
    (cd "$work/$1" && apt get download "$1" >>"$work/apt.log" 2>&1 && dpkg-deb -x ./*.deb . &&
        rm ./*.deb && touch unpacked) || skip "$1 cannot be had (see $work/apt.log)"
}
unpack "$kernel"
unpack busybox-static

# --- what runs there --------------------------------------------------------------------

# shellcheck disable=SC2086 # none or two words
(cd "$root" && cargo build --release --locked $build -p amdahl -p amdahl-preload)
image=$work/image
rm -rf "$image"
mkdir -p "$image/bin" "$image/proc" "$image/sys" "$image/dev" "$image/tmp"
cp "$work/busybox-static/bin/busybox" "$built/amdahl" "$built/libamdahl_preload.so" "$image/bin"
"$strip" -g "$image/bin/amdahl" "$image/bin/libamdahl_preload.so"
for program in mutex barrier flag_spin page_fault perfect; do
    "$cc" -std=gnu11 -O2 -g -pthread -o "$image/bin/$program" "$root/planted/c/$program.c"
done
# Its runtime changes stacks, which each architecture does in its own way.
if command -v go >/dev/null; then
    (cd "$root/planted/go" &&
        CGO_ENABLED=0 GOARCH=$debian go build -o "$image/bin/go-mutex" mutex.go planted.go)
    CGO_ENABLED=0 GOARCH=$debian go build -o "$image/bin/crowd" "$root/planted/locks/crowd.go"
fi
if [ -n "$libraries" ]; then
    mkdir -p "$image/lib"
    for library in "$libraries"/ld-linux-*.so.1 "$libraries"/libc.so.6 "$libraries"/libm.so.6 \
        "$libraries"/libgcc_s.so.1; do
        cp -L "$library" "$image/lib"
    done
else
    ldd "$image"/bin/* 2>/dev/null | sed -n 's/.*[[:space:]]\(\/[^ ]*\) (0x.*/\1/p' | sort -u |
        while read -r library; do
            mkdir -p "$image/$(dirname "$library")"
            cp -L "$library" "$image/$library"
        done
fi
cp "$here/init.sh" "$image/init"
cp "$here/host-page.init.sh" "$image/host-page-init"
chmod +x "$image/init" "$image/host-page-init"
(cd "$image" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/image.gz"

# --- there ------------------------------------------------------------------------------

log=$work/console.log
console_file=$work/console.raw

# Boots, for 15 minutes at most. Fails where the emulator went astray.
boot() {
    rm -f "$work"/monitor.* "$work/exceptions" "$console_file"
    mkfifo "$work/monitor.in" "$work/monitor.out"
    : >"$console_file"
    # Open in both directions, or opening would wait for the other side.
    exec 3<>"$work/monitor.in" 4<>"$work/monitor.out"
    # shellcheck disable=SC2086 # lists of words
    timeout 900 "qemu-system-$arch" $machine -accel tcg,thread=multi -smp 3 -m 2G -display none \
        -serial "file:$console_file" -monitor "pipe:$work/monitor" -D "$work/exceptions" \
        -no-reboot -kernel "$work/$kernel"/boot/vmlinuz-* -initrd "$work/image.gz" \
        -append "console=$console panic=-1 quiet loglevel=3 $quirks" </dev/null 3<&- 4<&- &
    emulator=$!
    trap 'kill "$emulator" 2>/dev/null' EXIT INT TERM
    while kill -0 "$emulator" 2>/dev/null; do
        sleep 2
        if grep -q 'soft lockup' "$console_file" && is_astray; then
            kill "$emulator"
            wait "$emulator" || true
            return 1
        fi
    done
    wait "$emulator" || true
}

# The emulator may go on for ever with an old translation of code of the kernel that the kernel has changed meanwhile, as it does
# when a program is attached to a tracepoint: CPUs then take a breakpoint again and again that is not in memory any more.
is_astray() {
    echo 'log int' >&3
    sleep 1
    echo 'log none' >&3
    at=$(sed -n 's/.* v=03 .* pc=\([0-9a-f]*\).*/\1/p' "$work/exceptions" | sort | uniq -c | sort -rn |
        awk 'NR == 1 && $1 > 1000 { print $2 }')
    [ -n "$at" ] || return 1
    echo "x /1bx 0x$at" >&3
    timeout 2 cat <&4 >"$work/memory" || true
    grep -q "^$at: 0x" "$work/memory" && ! grep -q "^$at: 0xcc" "$work/memory"
}

tries=4
while ! boot; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || {
        echo "kernels ($kernel): FAILED: the emulator went astray each time"
        exit 1
    }
    echo "kernels ($kernel): the emulator went astray (a breakpoint at $at that is not in memory); again"
done
trap - EXIT INT TERM
tr -d '\r' <"$console_file" >"$log"
grep -q '^END$' "$log" || {
    tail -n 20 "$log"
    echo "kernels ($kernel): FAILED: it did not come to its end (see $log)"
    exit 1
}
failed=
if awk -f "$here/check.awk" "$log"; then
    echo "kernels ($kernel): all right"
else
    echo "kernels ($kernel): FAILED (see $log)"
    failed=yes
fi

# --- there, as a guest ------------------------------------------------------------------

# The same tool runs on both sides, and firmware has to switch the device on.
if [ "$arch" = x86_64 ] && [ -z "$build" ]; then
    "$here/host-page.sh" "$work/$kernel"/boot/vmlinuz-* "$work/image.gz" "$built/amdahl" "$work" || failed=yes
else
    echo "SKIPPED: kernels ($arch): the host's page in a guest: x86-64 on x86-64 only"
fi
[ -z "$failed" ]
