#!/bin/sh
# Builds the BPF objects that are kept in the tree; `build.sh --check` proves that
# they are the build of this source. Needs clang 14, llvm-strip and libbpf's headers.
set -eu
cd "$(dirname "$0")"
out=.
[ "${1:-}" = --check ] && out=$(mktemp -d)
for source in *.bpf.c; do
    for arch in x86:x86_64 arm64:aarch64; do
        object=${source%.bpf.c}.${arch#*:}.bpf.o
        clang -O2 -g -target bpf -mcpu=v3 "-D__TARGET_ARCH_${arch%:*}" -Wall -Werror \
            -fdebug-prefix-map="$PWD=." -I"/usr/include/$(uname -m)-linux-gnu" \
            -c "$source" -o "$out/$object"
        llvm-strip -g "$out/$object"
        if [ "$out" != . ]; then
            cmp "$out/$object" "$object"
        fi
    done
done
if [ "$out" != . ]; then
    rm -r "$out"
    echo "bpf objects: the ones in the tree are the build of the source"
fi
