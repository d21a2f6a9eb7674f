#!/bin/sh
# Records the traces anew: record-all.sh FOLDER [vmalloc|compile|jvm|database]...
#
# vmalloc takes root, tracefs with the events of vmalloc, and unshare (util-linux). The others take strace, and of programs cc and
# cargo; a JDK; PostgreSQL's server with pgbench. What is missing is named as SKIPPED. A trace is whole or not written.
set -eu

[ $# -gt 0 ] || {
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
mkdir -p "$1"
to=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- vmalloc compile jvm database
cd "$(dirname "$0")/../../.."
recorder=$PWD/benches/memory/traces/record.py
# Readable by the user that the database runs as.
work=$(mktemp -d)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP

record() { python3 "$recorder" "$@"; }
has() { command -v "$1" >/dev/null 2>&1; }

# needs NAME COMMAND...: whether all of them are there.
needs() {
    name=$1
    shift
    for command in "$@"; do
        has "$command" || {
            echo "SKIPPED $name: there is no $command"
            return 1
        }
    done
}

# keep NAME COMMAND...: the command's output becomes that trace, unless it fails or has no event.
keep() {
    name=$1
    shift
    "$@" >"$work/$name.trace"
    grep -q '^a ' "$work/$name.trace" || {
        echo "$name: nothing was recorded" >&2
        exit 1
    }
    mv "$work/$name.trace" "$to/$name.trace"
    echo "$to/$name.trace: $(wc -l <"$to/$name.trace") lines"
}

vmalloc() {
    needs vmalloc python3 unshare mount || return 0
    if [ "$(id -u)" != 0 ] || [ ! -e /sys/kernel/tracing/events/vmalloc ]; then
        echo "SKIPPED vmalloc: takes root, and tracefs with the events of vmalloc (Linux 6.3)"
        return 0
    fi
    keep vmalloc record vmalloc
}

# All processes of a build: C files by gcc, then a crate with its dependencies.
compile() {
    needs compile python3 strace cc cargo || return 0
    cat >"$work/compile.sh" <<'EOF'
set -eu
objects=$1
for file in planted/c/*.c planted/locks/*.c; do
    cc -O2 -c "$file" -o "$objects/$(basename "$file" .c).o"
done
CARGO_TARGET_DIR=$objects/target cargo check -q --locked -p amdahl-mem
EOF
    mkdir "$work/objects"
    keep compile record process compile -- sh "$work/compile.sh" "$work/objects"
}

# The compiler, and three times a shell that makes 300 MB of garbage in 200 threads.
jvm() {
    needs jvm python3 strace javac jshell || return 0
    cat >"$work/garbage.jsh" <<'EOF'
var threads = new ArrayList<Thread>();
for (int n = 0; n < 200; n++) {
    var thread = new Thread(() -> {
        for (int turn = 0; turn < 24; turn++) {
            var garbage = new byte[1 << 16];
            garbage[turn] = 1;
        }
    });
    thread.start();
    threads.add(thread);
}
for (var thread : threads) thread.join();
/exit
EOF
    cat >"$work/jvm.sh" <<'EOF'
set -eu
javac -d "$1" benches/programs/Words.java
for _ in 1 2 3; do jshell "$1/garbage.jsh"; done
EOF
    keep jvm record process jvm -- sh "$work/jvm.sh" "$work"
}

# A server is made, filled, and asked by six clients, as `make bench-scale` does.
database() {
    needs database python3 strace setpriv || return 0
    bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
    if [ ! -x "${bin:-/}/postgres" ] || [ ! -x "$bin/pgbench" ]; then
        echo "SKIPPED database: there is no PostgreSQL server with pgbench in /usr/lib/postgresql"
        return 0
    fi
    folder=$work/database
    mkdir "$folder"
    # Where the checkout lies others may not read.
    cp benches/programs/postgres.sh "$folder/"
    cat >"$folder/database.sh" <<'EOF'
set -eu
bin=$1 folder=$2
"$bin/initdb" -D "$folder/data" -U bench -A trust -E UTF8 --no-sync
printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$folder'" \
    "dynamic_shared_memory_type = mmap" >>"$folder/data/postgresql.conf"
sh "$folder/postgres.sh" "$bin" "$folder" 0 2
sh "$folder/postgres.sh" "$bin" "$folder" 6 1200
EOF
    as=
    if [ "$(id -u)" = 0 ]; then
        # The server refuses to be root.
        id -u postgres >/dev/null 2>&1 && user=postgres || user=nobody
        chown "$user" "$folder"
        as="setpriv --reuid $(id -u $user) --regid $(id -g $user) --clear-groups"
    fi
    cd "$folder"
    # shellcheck disable=SC2086 # words
    keep database record process database -- $as sh "$folder/database.sh" "$bin" "$folder"
    cd "$OLDPWD"
}

for name in "$@"; do
    case $name in
    vmalloc | compile | jvm | database) "$name" ;;
    *)
        echo "$0: there is no trace $name" >&2
        exit 2
        ;;
    esac
done
