#!/usr/bin/env bash
# A SLURM cluster of one node with two CPUs, on loopback, for tests. As root, on Debian or Ubuntu:
#
#   apt-get install slurm-wlm munge
#   tests/slurm/cluster.sh up DIR       start munged, slurmctld and slurmd; their state and logs are in DIR
#   export SLURM_CONF=DIR/slurm.conf    what sbatch, squeue, scontrol and submitit then need
#   tests/slurm/cluster.sh down DIR     cancel all jobs and stop the three; DIR stays, for its logs
#
# `up` twice is `up` once, and so is `down`. No cgroups, no accounting (so sacct says nothing), nothing of the system's
# own SLURM or munge is used or changed. One cluster at a time: the ports 26817 and 26818 are fixed.
set -euo pipefail

usage="usage: cluster.sh up|down DIR"
action=${1:?$usage}
folder=$(realpath -m "${2:?$usage}")
export SLURM_CONF=$folder/slurm.conf
daemons=(munged slurmctld slurmd)  # in the order of their start

alive() {  # does the daemon of this name, and of this folder, run?
    local pid
    pid=$(cat "$folder/$1.pid" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] &&
        [ -n "$(readlink "/proc/$pid/exe")" ]  # a zombie has none
}

wait_for() {  # at most 30 seconds
    local tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 150 ] || { echo "cluster.sh: gave up waiting for: $*; see the logs in $folder" >&2; return 1; }
        sleep 0.2
    done
}

idle() { [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ]; }
no_jobs() { [ -z "$(squeue --noheader 2>/dev/null)" ]; }
dead() { ! alive "$1"; }

configure() {
    mkdir -p "$folder"/{state,spool}
    [ -s "$folder/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
    local memory=$(($(awk '/MemTotal/ {print $2}' /proc/meminfo) / 1024 * 9 / 10))
    cat >"$SLURM_CONF" <<END
ClusterName=tests
SlurmctldHost=localhost
SlurmUser=root
SlurmctldPort=26817
SlurmdPort=26818
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
# cred_expire is also how long a job that was requeued waits
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
JobRequeue=1
KillWait=3
SlurmctldTimeout=30
SlurmdTimeout=30
ReturnToService=2
NodeName=localhost CPUs=2 RealMemory=$memory
PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO
END
}

up() {
    if alive munged && alive slurmctld && alive slurmd && idle; then
        return
    fi
    down
    configure
    # --force: folders of tests are closed to other users, of whom there are none
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --seed-file="$folder/munged.seed" --log-file="$folder/munged.log" 2>"$folder/munged.err"
    wait_for alive munged
    slurmctld -c -f "$SLURM_CONF"
    slurmd -c -f "$SLURM_CONF" -N localhost
    wait_for alive slurmctld
    wait_for alive slurmd
    wait_for idle
}

down() {
    if alive munged && alive slurmctld && alive slurmd; then
        scancel --full --signal=KILL --user=root || true
        scancel --user=root || true
        wait_for no_jobs || true
    fi
    local at
    for ((at = ${#daemons[@]} - 1; at >= 0; at--)); do
        if alive "${daemons[at]}"; then
            kill "$(cat "$folder/${daemons[at]}.pid")"
            wait_for dead "${daemons[at]}" || kill -KILL "$(cat "$folder/${daemons[at]}.pid")"
        fi
        rm -f "$folder/${daemons[at]}.pid"
    done
}

case $action in
up) up ;;
down) down ;;
*) echo "$usage" >&2; exit 2 ;;
esac
