#!/bin/sh
# A sweep of `amdahl sim` with Slurm itself, on this machine alone: slurmctld, slurmd and munged of a folder of their own, on ports that are free,
# ended by their numbers. Nothing of the machine's own Slurm is touched. Not part of the tests: it needs root and Debian's packages
# slurmctld, slurmd, slurm-client and munge, and takes three minutes: Slurm lets two pass before a requeued task begins again.
#
#   tools/slurm/run.sh [target/release/amdahl]
set -eu
amdahl=$(realpath "${1:-target/release/amdahl}")
PATH=$PATH:/usr/sbin
if [ "$(id -u)" != 0 ]; then
    echo "SKIPPED slurm: slurmd needs root"
    exit 0
fi
for program in slurmctld slurmd sbatch scontrol scancel munged; do
    command -v $program >/dev/null || {
        echo "SKIPPED slurm: there is no $program; apt-get install slurmctld slurmd slurm-client munge"
        exit 0
    }
done

here=$(mktemp -d)
pids=
end() {
    # The latest first.
    for pid in $pids; do kill "$pid" 2>/dev/null || :; done
    for pid in $pids; do wait "$pid" 2>/dev/null || :; done
    rm -rf "$here"
}
trap end EXIT
trap 'exit 1' INT TERM

failed() {
    echo "FAILED slurm: $1"
    tail -n 20 "$here"/log/* "$here"/said 2>/dev/null || :
    exit 1
}

mkdir "$here/state" "$here/spool" "$here/log" "$here/work"
head -c 1024 /dev/urandom >"$here/munge.key"
chmod 600 "$here/munge.key"
munged --foreground --force --socket="$here/munge" --key-file="$here/munge.key" --log-file="$here/log/munged" \
    --pid-file="$here/munged.pid" --seed-file="$here/munge.seed" >"$here/log/munged.out" 2>&1 &
pids=$!
host=$(hostname -s)
# Ports that nobody listens at.
port=26817
while ss -Hltn 2>/dev/null | grep -q ":$port \|:$((port + 1)) "; do port=$((port + 2)); done
cat >"$here/slurm.conf" <<END
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
AuthInfo=socket=$here/munge
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/slurmd.pid
SlurmctldLogFile=$here/log/slurmctld
SlurmdLogFile=$here/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MaxArraySize=4
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=10 State=UP
END
export SLURM_CONF="$here/slurm.conf"
slurmctld -D -f "$SLURM_CONF" >"$here/log/slurmctld.out" 2>&1 &
pids="$! $pids"
slurmd -D -f "$SLURM_CONF" >"$here/log/slurmd.out" 2>&1 &
pids="$! $pids"
tries=0
until sinfo -h -o %T 2>/dev/null | grep -q idle; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || failed "the node does not become idle"
    sleep 1
done
echo "$(slurmctld -V) on $host"

cd "$here/work"
cat >sweep.toml <<'END'
workload = "barrier"
machines = ["4 core", "2 core x 2 thread"]
policies = ["steal", "linux"]
seeds = 2
[set]
loops = [2, 3]
threads = 4
END
sweep() { "$amdahl" sim sweep "$@" 2>>"$here/said"; }
sweep sweep.toml --output local >local.txt

# More tasks than the limit, a folder with a name that has to be quoted.
folder="of \"me\", it's 100 %a"
sweep sweep.toml --engine slurm --wait --shards 10 --output "$folder" >slurm.txt || failed "an array"
cmp local.txt slurm.txt || failed "other results than here"
grep -q "at most 4 tasks here" "$here/said" || failed "the limit of arrays is not told"
[ "$(ls "$folder"/slurm-*_?.out | wc -l)" = 4 ] || failed "other outputs than four"

# Cancelled while it runs, by a signal that the tool hears; then continued.
sed 's/loops = .*/loops = [20000, 30000]/' sweep.toml >long.toml
sweep long.toml --engine slurm --shards 3 --output long
job=$(sed -n 's/.*job \([0-9]*\) of Slurm, 3 tasks.*/\1/p' "$here/said")
[ -n "$job" ] || failed "no job"
until [ "$(ls long | grep -c '[.]json$')" -ge 2 ]; do
    [ -n "$(squeue -h -j "$job")" ] || failed "it has ended by itself"
done
scancel "$job"
while [ -n "$(squeue -h -j "$job" 2>/dev/null)" ]; do sleep 1; done
done=$(ls long | grep -c '[.]json$')
[ "$done" -lt 16 ] || failed "it had done all"
sweep long.toml --engine slurm --shards 3 --output long --wait >long.txt || failed "an array that continues"
grep -q "3 tasks, $((16 - done)) runs to do" "$here/said" || failed "it did not continue with $done of 16"
sweep long.toml --output long-here >long-here.txt
cmp long.txt long-here.txt || failed "other results than here, continued"

# A task that is requeued while it runs begins again, by --requeue.
sed 's/loops = .*/loops = [40000, 60000]/' sweep.toml >again.toml
sweep again.toml --engine slurm --shards 1 --output again
job=$(sed -n 's/.*job \([0-9]*\) of Slurm, 1 tasks.*/\1/p' "$here/said")
until [ "$(ls again | grep -c '[.]json$')" -ge 1 ]; do
    [ -n "$(squeue -h -j "$job")" ] || failed "it has ended by itself, before it was requeued"
done
scontrol requeue "${job}_0" || failed "requeue"
# Slurm waits two minutes before it lets it begin again; a hold that is released does not.
scontrol update jobid="${job}_0" starttime=now 2>/dev/null || :
tries=0
until [ "$(ls again | grep -c '[.]json$')" = 16 ]; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || failed "a requeued task did not end"
    sleep 1
done
echo "PASSED slurm: arrays, their limit, names, a cancelled array, a requeued task"
