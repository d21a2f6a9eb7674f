#!/bin/sh
# in-quota.sh CPUS COMMAND...: runs COMMAND in a cgroup (v1 or v2) that may use CPUS CPUs'
# worth of time, CPUS being a decimal number. Needs root; exits with 77 where it cannot.
set -eu
period_us=20000
quota_us=$(awk -v cpus="$1" -v period="$period_us" 'BEGIN { printf "%d", cpus * period }')
shift
enabled_cpu=
if [ -w /sys/fs/cgroup/cpu/tasks ]; then
    root=/sys/fs/cgroup/cpu
    procs=cgroup.procs
    group=$root/planted-$$
    mkdir "$group" || exit 77
    echo "$period_us" >"$group/cpu.cfs_period_us"
    echo "$quota_us" >"$group/cpu.cfs_quota_us"
elif [ -w /sys/fs/cgroup/cgroup.subtree_control ]; then
    root=/sys/fs/cgroup
    procs=cgroup.procs
    group=$root/planted-$$
    if ! grep -qw cpu "$root/cgroup.subtree_control"; then
        echo +cpu >"$root/cgroup.subtree_control" || exit 77
        enabled_cpu=yes
    fi
    mkdir "$group" || exit 77
    echo "$quota_us $period_us" >"$group/cpu.max"
else
    echo "SKIPPED: no cgroup with a CPU controller that may be written" >&2
    exit 77
fi
status=0
sh -c 'echo $$ >"$0" && exec "$@"' "$group/$procs" "$@" || status=$?
rmdir "$group"
[ -z "$enabled_cpu" ] || echo -cpu >"$root/cgroup.subtree_control"
exit "$status"
