#!/bin/bash
# [VER=24] up.sh [NODES] [CPUS_PER_NODE] : starts a Slurm cluster of nodes n1, n2, ... (4 with 4 CPUs each) on this machine.
# VER=22: the Slurm installed here. VER=24: the one in the Debian 13 tree. For more knobs see ../README.md.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
N=${1:-4} CPUS=${2:-4} VER=${VER:-22} GPUS=${GPUS:-8}
fail() { echo "up.sh: $1" >&2; exit 1; }
t=$EPOCHREALTIME
is_root || fail "needs root"
[ ! -e "/run/netns/$NAME-head" ] || fail "already up: run down.sh first"
if [ "$VER" = 24 ]; then
  [ -x "$TRIXIE_ROOT/usr/sbin/slurmd" ] || fail "no Slurm 24: run TRIXIE=1 ../prepare.sh slurm"
fi
for c in slurmd slurmctld munged tini; do
  command -v "$c" >/dev/null || fail "no $c: run ../prepare.sh slurm"
done

rm -rf "$RUN"
mkdir -p "$RUN"/{log,state,spool,munge,tmp,dev}
chmod 755 "$RUN" "$RUN"/*
echo "$VER" >"$RUN/ver"
stop() {
  local rc=$?
  [ $rc != 0 ] || return 0
  echo "up.sh: failed; the logs are in $RUN/log:" >&2
  tail -n 5 "$RUN"/log/* >&2
  "$S/down.sh" >&2
  exit $rc
}
trap stop EXIT

# names and networks: a bridge on the login node, a cable from there to each node
{
  echo "127.0.0.1 localhost"
  echo "$NET.1 head"
  for i in $(seq "$N"); do echo "$(ip_of "$i") n$i"; done
} >"$RUN/hosts"
ip netns add "$NAME-head"
ip -n "$NAME-head" link set lo up
ip -n "$NAME-head" link add br0 type bridge
ip -n "$NAME-head" addr add "$NET.1/24" dev br0
ip -n "$NAME-head" link set br0 up
for i in $(seq "$N"); do
  ip netns add "$NAME-n$i"
  ip -n "$NAME-n$i" link set lo up
  ip link add "v$i" netns "$NAME-head" type veth peer name eth0 netns "$NAME-n$i"
  ip -n "$NAME-head" link set "v$i" master br0 up
  ip -n "$NAME-n$i" addr add "$(ip_of "$i")/24" dev eth0
  ip -n "$NAME-n$i" link set eth0 up
done
setsid nsenter --net="/run/netns/$NAME-head" unshare --uts --mount --propagation private \
  "$S/node-init.sh" head </dev/null >"$RUN/log/head.boot" 2>&1 &
head=$!
echo $head >"$RUN/head.pid"
disown

# munge: one daemon; every node sees its socket
dd if=/dev/urandom of="$RUN/munge/key" bs=1024 count=1 status=none
chmod 400 "$RUN/munge/key"
nsenter --net="/run/netns/$NAME-head" munged --force --num-threads=4 --key-file="$RUN/munge/key" \
  --socket="$RUN/munge/munge.sock" --pid-file="$RUN/munge/munged.pid" --log-file="$RUN/log/munged.log" \
  --seed-file="$RUN/munge/seed" >>"$RUN/log/munged.boot" 2>&1

# configuration
cat >"$RUN/slurm.conf" <<C
ClusterName=lab
SlurmctldHost=head($NET.1)
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket=$RUN/munge/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$RUN/state
SlurmdSpoolDir=$RUN/spool/%n
SlurmctldPidFile=$RUN/slurmctld.pid
SlurmdPidFile=$RUN/%n.slurmd.pid
SlurmctldLogFile=$RUN/log/slurmctld.log
SlurmdLogFile=$RUN/log/%n.slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$RUN/log/jobcomp.txt
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=${SCHED_PARAMS:-batch_sched_delay=3,sched_interval=5,bf_interval=5}
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=${SLURMD_TIMEOUT:-20}
MessageTimeout=${MESSAGE_TIMEOUT:-10}
KillWait=${KILL_WAIT:-5}
InactiveLimit=0
MinJobAge=${MIN_JOB_AGE:-300}
GresTypes=gpu
NodeName=n[1-$N] CPUs=$CPUS RealMemory=2000 Gres=gpu:$GPUS State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=down Nodes=ALL MaxTime=INFINITE State=DOWN
${EXTRA_CONF:-}
C
if [ "$GPUS" = 0 ]; then
  sed -i '/^GresTypes/d; s/ Gres=gpu:0//' "$RUN/slurm.conf"
else # GPUs without a driver: Slurm only looks at the device files
  for g in $(seq 0 $((GPUS - 1))); do mknod "$RUN/dev/gpu$g" c 195 "$g"; done
  echo "Name=gpu File=$RUN/dev/gpu[0-$((GPUS - 1))]" >"$RUN/gres.conf"
fi
for _ in $(seq 100); do # until the login node has become one
  [ "$(cat "/proc/$head/comm")" != sleep ] || break
  sleep 0.05
done
version=$("$S/login" slurmctld -V)
case $version in
  *" 22."*) printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n' >"$RUN/cgroup.conf" ;;
  *)
    sed -i '/^SwitchType/d; /^TaskPlugin/d' "$RUN/slurm.conf"
    echo CgroupPlugin=disabled >"$RUN/cgroup.conf"
    ;;
esac

# the controller, then the nodes
"$S/login" slurmctld -c -f "$SLURM_CONF"
for i in $(seq "$N"); do start_node "$i"; done
idle=0
for _ in $(seq 300); do
  idle=$(timeout 3 "$S/login" sinfo -h -p debug -t idle -o %D 2>/dev/null || true)
  [ "${idle:-0}" != "$N" ] || break
  sleep 0.1
done
timeout 5 "$S/login" sinfo
[ "${idle:-0}" = "$N" ] || { echo "up.sh: ${idle:-0} of $N nodes are idle" >&2; exit 1; }
echo "up: $version, $N nodes in $(since "$t")"
