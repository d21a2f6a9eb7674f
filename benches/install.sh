#!/bin/sh
# install.sh: installs from Debian's packages what `make bench-scale` measures and is missing.
# Asks nothing. What cannot be installed is named, and the bench then skips it.
set -eu

# COMMAND:PACKAGE; pgbench comes with the server, whose programs lie in a folder of their own.
wanted='make:make gcc:gcc sort:coreutils xz:xz-utils zstd:zstd pigz:pigz pbzip2:pbzip2
hackbench:rt-tests go:golang-go javac:default-jdk-headless pgbench:postgresql perf:linux-perf
setpriv:util-linux'

missing=
for pair in $wanted; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "SKIPPED installing$missing: it takes root" >&2
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "SKIPPED installing$missing: there is no apt-get" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
case "$missing" in
*postgresql*)
    # The bench starts a server of its own: none is to be set up and started by the package.
    apt-get install -y -qq --no-install-recommends postgresql-common >/dev/null
    no_cluster=/etc/postgresql-common/createcluster.d/amdahl-bench.conf
    mkdir -p "${no_cluster%/*}"
    echo 'create_main_cluster = false' >"$no_cluster"
    trap 'rm -f "$no_cluster"' EXIT
    ;;
esac
for package in $missing; do
    apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
        echo "SKIPPED installing $package: apt-get failed" >&2
done
