#!/bin/busybox sh
# The first process of the guest that host-page.sh boots, which reads what is printed here.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
cd /tmp || poweroff -f

# Without BPF, whose programs the emulator may go astray over (see run.sh).
look() {
    amdahl phantom --probe proc --json "$@" 2>&1
}
result() {
    look --for 1s >result
    echo "RESULT $1 $(tr -d '\n' <result)"
}

# Both CPUs are wanted, so that what the host takes is missing.
for _ in 1 2; do
    while :; do :; done &
done
result first
echo READY
(
    look --watch --interval 500ms
    echo "ENDED $?"
) &
while :; do
    result next
done
