#!/bin/sh
# postgres.sh BIN FOLDER CLIENTS TRANSACTIONS: starts the server in FOLDER, has pgbench's
# CLIENTS make TRANSACTIONS in all, stops it. With CLIENTS = 0 it fills the database instead.
#
# The server is the workload, and it is not pgbench's child: so both run in one script. The work
# is fixed, so that wall times compare. pg_ctl is avoided because it looks ten times a second
# only, which would round the wall times.
set -eu
bin=$1 folder=$2 clients=$3 transactions=$4
export PGHOST="$folder" PGUSER=bench PGDATABASE=postgres

"$bin/postgres" -D "$folder/data" >"$folder/log" 2>&1 &
server=$!
# Fast shutdown; a second one, from the trap, is harmless.
trap 'kill -INT $server 2>/dev/null; wait $server' EXIT
trap 'exit 1' INT TERM HUP
until "$bin/pg_isready" -q; do
    kill -0 $server || exit 1
done
# In the background, because a trap waits for a program in the foreground.
if [ "$clients" -eq 0 ]; then
    "$bin/pgbench" -q -i -s "$transactions" &
else
    "$bin/pgbench" -c "$clients" -j "$clients" -t $((transactions / clients)) &
fi
wait $!
kill -INT $server
wait $server
trap - EXIT
