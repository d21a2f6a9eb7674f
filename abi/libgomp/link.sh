#!/bin/sh
# Links the static library into libgomp.so.1, with the symbol versions of GCC's.
#
#   link.sh libamdahl_libgomp.a libgomp.so.1
#
# The compiler driver is $CC (cc); nm and objcopy come with the linker.
set -eu

if [ $# != 2 ]; then
    echo "usage: $0 STATIC_LIBRARY OUTPUT" >&2
    exit 2
fi
cc=${CC:-cc}
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Functions of OpenMP 2.5 that have another meaning since, with the version that programs of that time ask for.
"$cc" -O2 -fPIC -c "$here/omp-1.0.c" -o "$work/omp-1.0.o"

# What nobody can reach is left out. The roots are the names of the map, and what omp-1.0.c calls.
names() { sed -n 's/^ *\([A-Za-z_0-9]*\);$/\1/p' "$here/libgomp.map"; }
{ names; nm -u "$work/omp-1.0.o" | awk '{ print $NF }'; } | sort -u >"$work/wanted"
nm -g --defined-only "$1" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$work/there"
comm -12 "$work/wanted" "$work/there" | sed 's/^/-Wl,-u,/' >"$work/roots"
if ! [ -s "$work/roots" ]; then
    echo "$0: $1 has none of the names of libgomp.map: is it the library of amdahl-libgomp?" >&2
    exit 1
fi
"$cc" -r -nostdlib -o "$work/reached.o" -Wl,--gc-sections "@$work/roots" \
    -Wl,--whole-archive "$1" -Wl,--no-whole-archive

# A name with two versions: GNU ld takes both only from symbols that say theirs. Those of C do so themselves, those of
# Rust are told here that they are the younger ones.
names | sort | uniq -d | sed 's/.*/& &@@OMP_3.0/' >"$work/versions"
objcopy --redefine-syms="$work/versions" "$work/reached.o"

# Names in the map that are not in the library are fine: newer linkers must be told.
undefined=
if "$cc" -Wl,--help 2>/dev/null | grep -q -e '--undefined-version'; then
    undefined=-Wl,--undefined-version
fi

# Put into its place whole: a program that has the old one loaded keeps it.
new=$2.$$
mkdir -p "$(dirname "$2")"
trap 'rm -rf "$work" "$new"' EXIT
"$cc" -shared -o "$new" "$work/reached.o" "$work/omp-1.0.o" \
    -Wl,-soname,libgomp.so.1 -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now \
    "-Wl,--version-script=$here/libgomp.map" $undefined \
    -lgcc_s -lpthread -lc
mv "$new" "$2"
