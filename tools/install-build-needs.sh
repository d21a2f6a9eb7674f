#!/bin/sh
# Installs what a make target needs and this machine lacks, through the machine's package
# manager and without questions.
#
#   install-build-needs.sh run|test|test-long|conformance|bpf|kernels|bench-pool|bench-image|bench-remote|bench-openmp
#
# What is required and cannot be had ends the script with exit code 1 and what to do. What only
# some tests need is named and left out; those tests print SKIPPED.
set -eu

kind=${1:?run, test, test-long, conformance, bpf, kernels, bench-pool, bench-image, bench-remote or bench-openmp}
required= # packages without which nothing can be built
optional= # packages without which something is skipped

has() { command -v "$1" >/dev/null 2>&1; }
want() { has "$1" || required="$required $2"; }
like() { has "$1" || optional="$optional $2"; }

# --- what is missing ------------------------------------------------------------------

want cc gcc
# A compiler without the headers of libc comes with gcc alone.
[ -e /usr/include/stdio.h ] || required="$required libc6-dev"
# Without them cargo cannot check whom it downloads from.
! has dpkg || [ -e /etc/ssl/certs/ca-certificates.crt ] || required="$required ca-certificates"
case $kind in
test)
    like g++ g++
    like make make
    like go golang-go
    like javac default-jdk-headless
    like objcopy binutils
    # Of what hangs, what it does is shown.
    like ps procps
    has chromium || has chromium-browser || has google-chrome || optional="$optional chromium"
    ;;
esac
case $kind in
test | conformance)
    # GCC's tests of libgomp, and the compilers that they are for.
    [ -d /usr/src/gcc-12 ] || optional="$optional gcc-12-source"
    like gcc-12 gcc-12
    like g++-12 g++-12
    like gfortran-12 gfortran-12
    like xz xz-utils
    # Programs that load OpenMP: see bin/amdahl/tests/cli/openmp_programs.rs.
    [ -e /usr/lib/python3/dist-packages/numpy ] || optional="$optional python3-numpy"
    [ -e /usr/lib/python3/dist-packages/sklearn ] || optional="$optional python3-sklearn"
    ls -d /usr/lib/*/openblas-openmp >/dev/null 2>&1 || optional="$optional libopenblas0-openmp"
    ls /usr/lib/*/libfftw3_omp.so >/dev/null 2>&1 || optional="$optional libfftw3-dev"
    like Rscript r-base-core
    ;;
esac
case $kind in
bench-pool)
    like g++ g++
    [ -e /usr/include/tbb/parallel_for.h ] || optional="$optional libtbb-dev"
    ;;
esac
case $kind in
bench-image)
    like zstd zstd
    like lz4 lz4
    like qemu-img qemu-utils
    like python3 python3
    like java default-jdk-headless
    ;;
esac
case $kind in
bench-remote)
    like qemu-system-x86_64 qemu-system-x86
    has criu || [ -x /usr/sbin/criu ] || optional="$optional criu"
    ;;
esac
case $kind in
bench-openmp)
    want gcc gcc
    libomp=
    for file in /usr/lib/llvm-*/lib/libomp.so.5 /usr/lib/*/libomp.so.5 /usr/lib64/libomp.so; do
        [ ! -e "$file" ] || libomp=$file
    done
    [ -n "$libomp" ] || optional="$optional libomp5"
    ;;
esac
case $kind in
kernels)
    like cpio cpio
    like qemu-system-x86_64 qemu-system-x86
    like qemu-system-aarch64 qemu-system-arm
    like aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || optional="$optional libc6-dev-arm64-cross"
    ;;
esac
# A program of 32 bits can be linked, which takes a second C library.
links_32_bits() { echo 'int main(void) { return 0; }' | gcc -m32 -x c -o /dev/null - 2>/dev/null; }
case $kind in
test-long)
    links_32_bits || optional="$optional gcc-multilib"
    like qemu-aarch64-static qemu-user-static
    like aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || optional="$optional libc6-dev-arm64-cross"
    # Of what hangs, what it does is shown.
    like ps procps
    ;;
esac
case $kind in
test | bpf)
    # The very version: another one builds other objects.
    [ -x /usr/lib/llvm-14/bin/clang ] || optional="$optional clang-14"
    [ -x /usr/lib/llvm-14/bin/llvm-strip ] || optional="$optional llvm-14"
    [ -e /usr/include/bpf/bpf_helpers.h ] || optional="$optional libbpf-dev"
    ;;
esac

# --- how to install it -----------------------------------------------------------------

as_root=
if [ "$(id -u)" != 0 ]; then
    if has sudo && sudo -n true 2>/dev/null; then as_root='sudo -n'; else as_root=no; fi
fi
can_install() { has apt-get && [ "$as_root" != no ]; }

# The lists tell which packages there are; a fresh container has none.
updated=
refresh() {
    [ -z "$updated" ] || return 0
    echo "make: updating the package lists" >&2
    $as_root apt-get -qq update >&2 || true
    updated=yes
}

apt() {
    # Nothing that is installed may go: a package that conflicts is reported instead.
    if said=$($as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-remove \
        --no-install-recommends "$@" </dev/null 2>&1); then return 0; fi
    printf '%s\n' "$said" | tail -n 5 >&2
    return 1
}

# Package names that this release does not have (rustfmt-web, ...) are left out.
known() {
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then printf ' %s' "$package"; fi
    done
}

if [ -n "$required" ]; then
    if can_install; then
        refresh
        echo "make: installing$required" >&2
        # shellcheck disable=SC2086 # a list of words
        apt $required || true
    fi
    if ! has cc || [ ! -e /usr/include/stdio.h ]; then
        echo "make: a C compiler and the headers of libc are needed to link Rust programs; as" \
            "root: apt-get install$required (or what your distribution calls them)" >&2
        exit 1
    fi
fi

# --- Rust -------------------------------------------------------------------------------

root=$(cd "$(dirname "$0")/.." && pwd)
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")

# "1.85.0" >= "1.88"?
is_new_enough() {
    version=$(cargo --version 2>/dev/null | awk '{ print $2 }')
    [ -n "$version" ] &&
        [ "$(printf '%s\n%s\n' "$oldest" "$version" | sort -V | head -n 1)" = "$oldest" ]
}

# The package of that name is new enough.
offers() {
    version=$(apt-cache show --no-all-versions "$1" 2>/dev/null | sed -n 's/^Version: //p')
    [ -n "$version" ] &&
        [ "$(printf '%s\n%s\n' "$oldest" "$version" | sort -V | head -n 1)" = "$oldest" ]
}

install_rust() {
    can_install || return 0
    refresh
    if offers cargo && offers rustc; then
        echo "make: installing cargo and rustc from the distribution" >&2
        apt cargo rustc && return 0
    fi
    # Debian keeps a current compiler for its browsers beside the one of the release.
    if offers cargo-web && offers rustc-web; then
        echo "make: installing cargo-web and rustc-web" >&2
        apt cargo-web rustc-web && return 0
    fi
    if apt-cache show rustup >/dev/null 2>&1; then
        echo "make: installing rustup and a stable toolchain" >&2
        apt rustup && rustup toolchain install stable --profile minimal \
            --component clippy --component rustfmt >&2 && return 0
    fi
    return 0
}

if ! is_new_enough; then
    has rustup || install_rust
    hash -r
    if ! is_new_enough; then
        echo "make: Rust $oldest or newer is needed; found: $(cargo --version 2>/dev/null ||
            echo none). Install a current toolchain with rustup (your distribution's package" \
            "rustup, or as its web page says), or on Debian 12 as root:" \
            "apt-get install cargo-web rustc-web" >&2
        exit 1
    fi
fi

# --- what only some tests need ----------------------------------------------------------

if [ "$kind" = test ] && dpkg -s rustc-web >/dev/null 2>&1; then
    like rustfmt rustfmt-web
    like cargo-clippy rust-web-clippy
fi
if [ -n "$optional" ]; then
    if can_install; then
        refresh
        # shellcheck disable=SC2086 # a list of words
        there=$(known $optional)
        if [ -n "$there" ]; then
            echo "make: installing$there" >&2
            # One after the other: one that conflicts must not keep the others out.
            for package in $there; do
                apt "$package" || echo "make: not installed: $package; what needs it is skipped" >&2
            done
        fi
    else
        echo "make: not installed, because that takes root:$optional; what needs them is" \
            "skipped" >&2
    fi
fi
if [ "$kind" = test-long ]; then
    # What rustup installs with these words.
    toolchain() {
        echo "make: rustup $*" >&2
        if ! has rustup; then
            echo "make: not installed, because there is no rustup: $*; what needs it is skipped" >&2
        elif ! (cd "$root" && rustup "$@" </dev/null >&2); then
            echo "make: not installed: $*; what needs it is skipped" >&2
        fi
    }
    library() { [ -d "$(cd "$root" && rustc --print sysroot)/lib/rustlib/$1" ]; }
    is_nightly_whole() {
        cargo +nightly miri --version && [ -d "$(rustc +nightly --print sysroot)/lib/rustlib/src" ]
    } >/dev/null 2>&1
    is_nightly_whole ||
        toolchain toolchain install nightly --profile minimal --component miri --component rust-src
    for target in aarch64-unknown-linux-gnu i686-unknown-linux-gnu; do
        library "$target" || toolchain target add "$target"
    done
fi
if [ "$kind" = bpf ] && ! { [ -x /usr/lib/llvm-14/bin/clang ] || has clang; }; then
    echo "make: clang 14, llvm-strip and libbpf's headers are needed; as root:" \
        "apt-get install clang-14 llvm-14 libbpf-dev" >&2
    exit 1
fi
