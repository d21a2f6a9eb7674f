#!/bin/sh
# Builds the planted programs for which there is a compiler, into target/planted/ (or into
# the folder given as argument). What has no compiler is named as SKIPPED.
set -eu
cd "$(dirname "$0")"
out=${1:-../target/planted}
languages=
for pair in c:gcc cpp:g++ rust:rustc go:go java:javac; do
    if command -v "${pair#*:}" >/dev/null 2>&1; then
        languages="$languages ${pair%%:*}"
    else
        echo "SKIPPED planted ${pair%%:*} programs: no ${pair#*:} found" >&2
    fi
done
# shellcheck disable=SC2086 # a list of words
exec make --no-print-directory -j "$(nproc)" OUT="$out" $languages
