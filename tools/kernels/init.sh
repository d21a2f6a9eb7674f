#!/bin/busybox sh
# The first process of the machine that run.sh boots. What it prints is checked by check.awk.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
echo '+cpuset +cpu' >/sys/fs/cgroup/cgroup.subtree_control
cd /tmp || poweroff -f

# A hole in the numbers of CPUs: 0 and 2 are left.
echo 0 >/sys/devices/system/cpu/cpu1/online
uname -rm
amdahl doctor

# NAME CAUSE FUNCTION SOURCE PROGRAM
measure() {
    echo "BEGIN $1 $2 $3 $4"
    amdahl scale --json --runs 1 --no-warmup -- "$5" '{cpus}' 2>/tmp/said || cat /tmp/said
    echo "DONE"
}
measure mutex lock-wait take_the_ledger_lock bpf mutex
measure barrier barrier wait_at_the_gate bpf barrier
measure spin user-spin stare_at_the_flag bpf flag_spin
measure fault page-fault touch_fresh_pages bpf page_fault
measure perfect none - bpf perfect
[ ! -e /bin/go-mutex ] || measure go lock-wait unlockTheCache bpf go-mutex

# The programs of the other views load and attach: NAME, then the view and its options.
view() {
    name=$1
    shift
    if amdahl "$@" --probe bpf --json -- mutex 2 >/tmp/said 2>/tmp/error; then
        echo "VIEW $name $(grep -c '"schema"' /tmp/said)"
    else
        echo "VIEW $name 0 $(head -c 600 /tmp/error | tr '\n' ' ')"
    fi
}
# How long mmap_lock was held, of which there are rows in what was told last.
holds() {
    echo "HOLDS $1 $(grep -c '"holds": \[$' /tmp/said)"
}
view locks locks
view locks-owner locks --owner
holds locks-owner
# Probes in a program of Go: its waits.
if [ -e /bin/crowd ]; then
    amdahl locks --goroutines --probe bpf --json -- crowd 5 >/tmp/said 2>/tmp/error
    echo "GOROUTINES $(grep -c 'main.wantTheVault' /tmp/said) $(head -c 600 /tmp/error | tr '\n' ' ')"
fi
view sched sched record
view mem mem
view mem-holds mem --holds
holds mem-holds

# A caller with a quota: its runs must not leave it, and nothing may be left of them.
mkdir /sys/fs/cgroup/limited
echo '50000 100000' >/sys/fs/cgroup/limited/cpu.max
(
    echo 0 >/sys/fs/cgroup/limited/cgroup.procs
    amdahl scale --quiet --no-output --runs 1 --no-warmup -- sh -c \
        'cat /proc/self/cgroup >>/tmp/groups; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done' >/tmp/said
)
echo "LIMITED groups $(sort -u /tmp/groups | tr '\n' ' ')"
echo "LIMITED throttled $(sed -n 's/^nr_throttled //p' /sys/fs/cgroup/limited/cpu.stat)"
echo "LIMITED left $(find /sys/fs/cgroup/limited -mindepth 1 -type d | wc -l) $(cat /sys/fs/cgroup/limited/cgroup.type)"
rmdir /sys/fs/cgroup/limited
mount -t tmpfs none /sys/kernel/btf
measure mutex-without-btf lock-wait take_the_ledger_lock /proc mutex
echo END
poweroff -f
