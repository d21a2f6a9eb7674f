#!/bin/sh
# Ends what hangs: watch.sh LOG PID
#
# PID is a shell whose command writes to LOG. Where LOG does not grow for $QUIET_MAX seconds (600), this says what the
# processes below PID are doing and ends them: first those below the command (a test below cargo, which then goes on
# with the next), then, if nothing is written for as long again, the command too.
set -u

log=$1
root=$2
limit=${QUIET_MAX:-600}

# below PID: all processes below it but this script and what it runs, `depth pid` a line.
below() {
    ps -e -o pid= -o ppid= | awk -v root="$1" -v self=$$ '
        { children[$2] = children[$2] " " $1 }
        function walk(pid, depth, list, n, i) {
            n = split(children[pid], list, " ")
            for (i = 1; i <= n; i++) {
                if (list[i] == self) continue
                print depth, list[i]
                walk(list[i], depth + 1)
            }
        }
        END { walk(root, 1) }'
}

# What a process does: its threads, where the kernel has them, and their stacks where there is a debugger.
show() {
    ps -L -p "$1" -o pid,ppid,tid,stat,etime,time,wchan:24,args 2>/dev/null || return
    for thread in /proc/"$1"/task/*; do
        [ -r "$thread/syscall" ] && echo "  ${thread##*/} system call: $(cat "$thread/syscall" 2>/dev/null)"
        [ -r "$thread/stack" ] && sed 's/^/    /' "$thread/stack" 2>/dev/null
    done
    if command -v gdb >/dev/null 2>&1; then
        timeout 60 gdb -p "$1" -batch -nx -ex 'thread apply all backtrace 30' 2>/dev/null | tail -n 200
    fi
}

size=
quiet=0
depth=3
# grown: somebody wrote meanwhile.
grown() {
    now=$(wc -c <"$log" 2>/dev/null)
    [ "$now" != "$size" ]
}
while sleep 5; do
    kill -0 "$root" 2>/dev/null || exit 0
    if grown; then
        size=$now
        quiet=0
        depth=3
        continue
    fi
    quiet=$((quiet + 5))
    [ "$quiet" -lt "$limit" ] && continue
    quiet=0
    echo
    echo "=== HANGS: nothing was written for $limit s; what runs:"
    below "$root" | while read -r _ pid; do show "$pid"; done
    # That may have taken a while.
    grown && continue
    # Below the shell are the part of the pipe, the command, and what it runs.
    below "$root" | while read -r at pid; do
        if [ "$at" -ge "$depth" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != tee ]; then
            echo "=== ended: $pid $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"
            kill -KILL "$pid" 2>/dev/null
        fi
    done
    depth=2
done
