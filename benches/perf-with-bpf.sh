#!/bin/sh
# perf-with-bpf.sh FOLDER: leaves a perf that has `perf lock contention -b` as FOLDER/perf, unless it is there.
#
# Debian builds its perf without BUILD_BPF_SKEL, so this builds it from Debian's package of the kernel's source:
# about 140 MB to download, 1 GB on disk meanwhile, some minutes on two CPUs. Asks nothing. What is missing is named, and there
# are then no rows beside this perf.
set -eu

to=${1:?FOLDER}
[ ! -x "$to/perf" ] || exit 0
! perf lock contention -b -- true >/dev/null 2>&1 || exit 0

skip() {
    echo "SKIPPED perf lock contention -ab: $1" >&2
    exit 0
}
[ -r /sys/kernel/btf/vmlinux ] || skip 'the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)'
[ "$(id -u)" -eq 0 ] || skip 'installing what builds it takes root'
command -v apt-get >/dev/null 2>&1 || skip 'there is no apt-get'

export DEBIAN_FRONTEND=noninteractive
echo 'bench: building a perf that has lock contention -b, once; some minutes'
apt-get update -qq
apt-get install -y -qq --no-install-recommends gcc make flex bison clang-14 llvm-14 xz-utils \
    libelf-dev libdw-dev zlib1g-dev >/dev/null || skip 'apt-get could not install what builds it'

mkdir -p "$to"
# Absolute: the end removes it from within.
to=$(cd "$to" && pwd)
work=$(mktemp -d "$to/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$work"
source=$(apt-cache depends linux-source | sed -n 's/.*Depends: \(linux-source-[0-9.]*\).*/\1/p' | head -n 1)
apt-get download -qq "${source:?}" 2>/dev/null || skip "apt-get could not download $source"
# The whole source is 1.3 GB; of it what perf is built from.
dpkg-deb --fsys-tarfile "$source"_*.deb | tar -xO "./usr/src/$source.tar.xz" |
    tar -xJ --wildcards "$source/tools/*" "$source/scripts/*" "$source/include/*" "$source/arch/*/include/*" \
        "$source/arch/x86/*" "$source/kernel/bpf/*" "$source/lib/*" "$source/Makefile" "$source/MAINTAINERS"
PATH=/usr/lib/llvm-14/bin:$PATH make -s -j"$(nproc)" -C "$source/tools/perf" BUILD_BPF_SKEL=1 WERROR=0 \
    NO_LIBPYTHON=1 NO_LIBPERL=1 NO_LIBBABELTRACE=1 NO_SLANG=1 NO_GTK2=1 NO_LIBCRYPTO=1 NO_LIBAUDIT=1 NO_LIBCAP=1 \
    NO_LIBNUMA=1 NO_LIBLZMA=1 NO_LIBZSTD=1 NO_LIBUNWIND=1 NO_JVMTI=1 NO_DEMANGLE=1 perf >build.log 2>&1 ||
    { tail -n 5 build.log >&2; skip 'perf could not be built'; }
mv "$source/tools/perf/perf" "$to/perf"
