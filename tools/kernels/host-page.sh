#!/bin/sh
# Boots a kernel as a guest that has the host's page in its memory, and follows what a real `amdahl phantom` there makes of it:
# finds it, follows what the host gives and takes, does without it when its writer was killed, takes it up again, and outlives the
# device.
#
#   host-page.sh KERNEL INITRD TOOL WORK
#
# INITRD has host-page.init.sh as /host-page-init, WORK is a folder. Nothing is timed: each state is waited for, five minutes at most.
set -eu

kernel=$1 initrd=$2 tool=$3 work=$4
name='kernels (host page)'
command -v taskset >/dev/null || {
    echo "SKIPPED: $name: there is no taskset"
    exit 0
}
console=$work/host-page.console
said=$work/host-page.daemon
page=$work/host-page
rm -f "$page" "$console" "$said" "$work/host-page.pid" "$work/host-page.monitor"
mkfifo "$work/host-page.monitor"
# Open in both directions, or opening would wait for the other side.
exec 3<>"$work/host-page.monitor"
truncate -s 64K "$page"
: >"$console"
: >"$said"

emulator='' daemon='' loads=''
cleanup() {
    # shellcheck disable=SC2086 # a list of process ids
    kill $loads $daemon $emulator 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

fail() {
    echo "  $*"
    tail -n 3 "$console" | cut -c 1-600
    tail -n 3 "$said"
    echo "$name: FAILED (see $console)"
    exit 1
}

# Waits for a state: what it is, and the command that finds it.
until_state() {
    what=$1
    shift
    tries=300
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "$what: not seen"
        kill -0 "$emulator" 2>/dev/null || fail "$what: the emulator has ended"
        ! grep -q '^ENDED' "$console" || fail "$what: the guest's tool has ended"
        sleep 1
    done
    echo "  $what"
}

says() { grep -q -e "$1" "$console"; }

# Lines that have come since `mark` was called.
mark() { marked=$(wc -l <"$console"); }
since() { tail -n "+$((marked + 1))" "$console" | grep -e "$1"; }
says_since() { since "$1" >/dev/null; }

# The mean of a figure in the last 6 looks since the mark; fails if there are fewer, or one is not known. Looks are dear to an
# emulated guest, and so come to be seconds apart.
mean_of() {
    since '"amdahl.phantom-tick/1"' | sed -n "s/.*\"$1\":\([^,}]*\)[,}].*/\1/p" | tail -n 6 |
        awk '$1 == "null" { unknown = 1 } { sum += $1 } END { if (unknown || NR < 6) exit 1; print sum / NR }'
}
# Its mean is known, `>=` or `<=` a number.
is_mean() {
    mean=$(mean_of "$1") && awk "BEGIN { exit !($mean $2 $3) }"
}
known() { mean=$(mean_of "$1"); }

serve() {
    "$tool" phantom --serve --vm "$vm" --page "$page" >>"$said" 2>&1 3<&- &
    daemon=$!
}
# A result of the guest that has this daemon as a source.
is_source() {
    since '^RESULT next' | grep -e '"how": "the host.s page"' | grep -e '"used": true' |
        grep -e '"path": "/sys/bus/pci/devices/[^"]*/resource2"' | grep -q -e "\"writer\": $daemon[,} ]"
}

# On two CPUs whatever the machine has, so that a few processes take them.
cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status | tr ',' '\n' |
    awk -F - '{ for (cpu = $1; cpu <= $NF && n < 2; cpu++) printf "%s%s", n++ ? "," : "", cpu }')
timeout 1800 taskset -c "$cpus" qemu-system-x86_64 -cpu max -accel tcg,thread=multi -smp 2 -m 1G -display none \
    -name guest,debug-threads=on -pidfile "$work/host-page.pid" -serial "file:$console" -monitor stdio -no-reboot \
    -object "memory-backend-file,id=amdahl,share=on,readonly=on,mem-path=$page,size=64K" \
    -device ivshmem-plain,id=page,memdev=amdahl -kernel "$kernel" -initrd "$initrd" \
    -append "rdinit=/host-page-init console=ttyS0 panic=-1 quiet loglevel=3 tsc=reliable clocksource=tsc no_timer_check" \
    <&3 3<&- >"$work/host-page.qemu" 2>&1 &
emulator=$!

until_state 'the guest runs' says '^READY'
vm=$(cat "$work/host-page.pid")
grep -q -e '^RESULT first.*"host_page": null' "$console" || fail 'a device with nothing on it is taken for a page'
mark
serve
until_state 'the page is found and is a source' is_source
until_state 'the one who watches says so' says_since "the host's page .* is used"

mark
until_state 'what the host gives is known' known host_runnable_cpus
before=$mean
for _ in 1 2 3 4 5 6; do
    for cpu in $(echo "$cpus" | tr ',' ' '); do
        timeout 1800 taskset -c "$cpu" sh -c 'while :; do :; done' 3<&- &
        loads="$loads $!"
    done
done
mark
until_state "others on the host take it ($before CPUs)" is_mean host_runnable_cpus '<=' "0.6 * $before"
little=$mean

# Now that the guest sees more than the host had for it.
kill -9 "$daemon"
# The shell would say that it was killed.
{ wait "$daemon" || true; } 2>/dev/null
daemon=''
mark
until_state "the host's daemon is killed: the page is stale" says_since "the host's page .* is ignored: it is stale"
mark
until_state "the guest does without ($little CPUs)" is_mean runnable_cpus '>=' "1.5 * $little"
! says_since '"host_runnable_cpus":[0-9]' || fail 'what a dead daemon has left is believed'
until_state 'a result says why' says_since '^RESULT next.*"used": false.*it has not changed since the first look'

# shellcheck disable=SC2086 # a list of process ids
kill $loads
loads=''
mark
serve
until_state 'the next daemon is a source' is_source
until_state 'the one who watches says so' says_since "the host's page .* is used"
until_state 'others have given back what they took' is_mean host_runnable_cpus '>=' "1.5 * $little"

mark
echo 'device_del page' >&3
until_state 'the device is taken away' says_since "the host's page .* is ignored: "
mark
until_state 'the guest goes on without' known runnable_cpus
until_state 'a result knows of none' says_since '^RESULT next.*"host_page": null'

# Of the same look each.
sed -n 's/.*"runnable_cpus":\([0-9.]*\),.*"host_runnable_cpus":\([0-9.]*\)}.*/\1 \2/p' "$console" |
    awk '{ n++ } $1 > $2 + 0.001 { print "  " $1 " runnable CPUs where the host has " $2; more = 1 } END { exit more || n < 18 }' ||
    fail 'the guest believes that it has more than the host says'
echo "$name: all right"
