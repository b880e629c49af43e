#!/bin/bash
# record.sh 22|24 : starts a cluster of the lab (SLURM_LAB=corpus), brings about what can happen to a job, and writes what Slurm's
# commands print into 22.05/ or 24.11/ beside this file. Takes about five minutes. Each job is named after its situation.
set -euo pipefail
HERE=$(dirname "$(readlink -f "$0")")
LABS=$HERE/../../labs/slurm
export SLURM_LAB=corpus VER=${1:-22}
case $VER in 22) OUT=$HERE/22.05 ;; 24) OUT=$HERE/24.11 ;; *) echo "record.sh: 22 or 24" >&2; exit 2 ;; esac
RUN=${MILKWEED_LAB:-$HOME/.cache/milkweed-lab}/slurm/run-$SLURM_LAB
HOOKS=$RUN-hooks
JOBS='job|%i|%A|%T|%N|%B|%S|%e|%L|%r|%k|%j|end'
NODES='node|%N|%n|%o|%P|%a|%l|%s|%T|%c|%m|%G|%f|%E|end'
STUBBORN='trap "" TERM; while :; do sleep 1; done'
mkdir -p "$OUT" "$HOOKS"
find "$OUT" -type f ! -name 'sacct-*' ! -name error-down-sacct.txt -delete # those are of record-accounting.sh
cd /

begin_at() { FIRST=$(($(run squeue -h -a -t all -o %A | sort -n | tail -1) + 1)); }
FIRST=1
run() { timeout 100 "$LABS/login" "$@" </dev/null; }
job() { run sbatch --parsable -o /dev/null -t 60 -J "$@"; }
sleeper() { job "$@" --wrap 'exec sleep 900'; }
ids() { run squeue -h -a -t all -u root -o %i | sed 's/[^0-9].*//' | sort -nu | awk -v first="$FIRST" '$1 >= first'; }
squeue_to() { # squeue_to NAME [VARIABLE=VALUE] : the jobs since begin_at
  run env ${2:+"$2"} squeue -h -a -t all -j "$(ids | paste -sd,)" -o "$JOBS" >"$OUT/squeue-$1.txt"
}
show_jobs() { local id; for id in $(ids); do run scontrol show job "$@" "$id"; done; }
both_to() {
  squeue_to "$1"
  show_jobs -o >"$OUT/scontrol-$1.txt"
}
sinfo_to() { run sinfo -N -h -a -o "$NODES" >"$OUT/sinfo-$1.txt"; }
error_to() { # error_to NAME CMD... : what a command that fails says
  local name=$1
  shift
  run "$@" >/dev/null 2>"$OUT/error-$name.txt" || true
  [ -s "$OUT/error-$name.txt" ] || rm "$OUT/error-$name.txt"
}
state_of() { run squeue -h -a -t all -j "$1" -o %T 2>/dev/null || true; }
until_state() { # until_state ID STATE
  local _
  for _ in $(seq 600); do
    case " $2 " in *" $(state_of "$1" | paste -sd' ') "*) return ;; esac
    sleep 0.2
  done
  echo "record.sh: job $1 never was $2" >&2
  return 1
}

# shellcheck disable=SC2016
printf '#!/bin/sh\n[ "$SLURM_JOB_NAME" != configuring ] || sleep 6\n' >"$HOOKS/prolog-controller"
printf '#!/bin/sh\n[ ! -e %s/refuse ]\n' "$HOOKS" >"$HOOKS/prolog-node"
chmod +x "$HOOKS"/prolog-*
rm -f "$HOOKS/refuse"
mkdir -p "$HOOKS/my logs"
trap '"$LABS/down.sh"; rm -rf "$HOOKS"' EXIT
MIN_JOB_AGE=1200 SLURMD_TIMEOUT=10 EXTRA_CONF="Licenses=gold:1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PrologSlurmctld=$HOOKS/prolog-controller
Prolog=$HOOKS/prolog-node
PartitionName=short Nodes=n[1-3] MaxTime=30 MinNodes=1 MaxNodes=2
PartitionName=inactive Nodes=ALL State=INACTIVE
PartitionName=hidden Nodes=n1 Hidden=YES MaxTime=2-12:00:00
PartitionName=empty
PartitionName=urgent Nodes=ALL PriorityTier=10" "$LABS/up.sh" 4 >&2

echo "versions and refusals"
run sbatch --version >"$OUT/sbatch-version.txt"
sinfo_to idle
run squeue -a -t all -u root -o "$JOBS" >"$OUT/squeue-none.txt"
run scontrol create PartitionName=big Nodes=ALL MaxNodes=4096
run sinfo -N -a --noconvert -o "$NODES" >"$OUT/sinfo-large.txt"
sinfo_to large-shortened
run scontrol delete PartitionName=big
error_to sacct sacct -P -n -X -j 1
error_to scontrol-unknown-job scontrol show job -o 99999
error_to squeue-unknown-job squeue -h -j 99999
error_to squeue-unknown-user squeue -h -u nosuchuser
error_to scancel-unknown-job scancel 99999
error_to sbatch-unknown-partition sbatch -p nosuch --wrap true
error_to sbatch-inactive-partition sbatch -p inactive --wrap true
error_to sbatch-too-many-gpus sbatch -J refused-gpus --gres=gpu:99 --wrap true
error_to sbatch-too-much-memory sbatch -J refused-memory --mem=9T --wrap true
error_to sbatch-unknown-feature sbatch -C nosuch --wrap true
error_to sbatch-bad-time sbatch -t soon --wrap true
error_to sbatch-unknown-reservation sbatch --reservation=nosuch --wrap true
error_to sbatch-unknown-option sbatch --nosuch --wrap true
error_to sbatch-no-script sbatch /nonexistent
error_to sbatch-unknown-gres sbatch --gres=nosuch:1 --wrap true

echo "jobs that wait"
run scontrol update NodeName=n1 AvailableFeatures=fast,big ActiveFeatures=fast,big
run scontrol update NodeName=n4 State=DRAIN Reason='bad disk | see ticket 12'
run scontrol create reservation ReservationName=later StartTime=now+1day Duration=60 Users=root Nodes=n3 >/dev/null
het=$(run sbatch --parsable -J het -o /dev/null --comment first -N1 -t 60 : --comment second -N2 -t 60 --wrap 'exec sleep 900')
until_state "$het" "RUNNING RUNNING"
timeout_id=$(sleeper timeout -N1 -t 1)
sleeper running -N2 -t 2:00:00 --comment 'milkweed:1:0b0c5f8e-0000-4000-8000-000000000001:1:0:running' >/dev/null
sleeper 'odd | name = 1' -N1 -t 30 --comment 'JobState=FAILED | x' -p short -o "$HOOKS/my logs/%x.out" >/dev/null
sleeper $'two\nlines' -N1 -t 90 --comment $'a\nb' -p hidden >/dev/null
job array -N1 --array=1-2 --wrap 'exec sleep 900' >/dev/null
licensed=$(sleeper licensed -N1 -L gold:1)
until_state "$licensed" RUNNING
sleeper Licenses -N1 -L gold:1 >/dev/null
sleeper Resources -N3 --exclusive >/dev/null
sleeper Priority -N3 --exclusive >/dev/null
sleeper unlimited -N1 -t UNLIMITED >/dev/null
error_to sbatch-too-many-nodes sbatch -J too-many-nodes -o /dev/null -t 60 -N9 --wrap 'exec sleep 900'
error_to sbatch-too-many-cpus sbatch -J too-many-cpus -o /dev/null -t 60 -c 99 --wrap 'exec sleep 900'
error_to sbatch-gone-dependency sbatch -J gone-dependency -o /dev/null -t 60 -d afterok:99999 --wrap 'exec sleep 900'
sleeper PartitionDown -N1 -p down >/dev/null
run scontrol update PartitionName=inactive State=DOWN
sleeper PartitionInactive -N1 -p inactive >/dev/null
run scontrol update PartitionName=inactive State=INACTIVE
sleeper PartitionTimeLimit -N1 -p short -t 60 >/dev/null
sleeper PartitionNodeLimit -N3 -p short >/dev/null
sleeper JobHeldUser -N1 -H >/dev/null
held=$(sleeper JobHeldAdmin -N1)
run scontrol hold "$held"
sleeper BeginTime -N1 --begin=now+1hour >/dev/null
sleeper Dependency -N1 -d "afterok:$licensed" >/dev/null
sleeper ReqNodeNotAvail -w n4 >/dev/null
sleeper Reservation --reservation=later >/dev/null
job pending-array --array=1-3 -H --wrap 'exec sleep 900' >/dev/null
run sbatch --parsable -J het-pending -o /dev/null -N1 -H : -N1 -H --wrap 'exec sleep 900' >/dev/null
failing=$(job failed -N1 --wrap 'exit 3')
sleeper DependencyNeverSatisfied -d "afterok:$failing" >/dev/null
sleep 12
both_to waiting
sinfo_to drained
suspend=$(sleeper suspended -N1)
until_state "$suspend" RUNNING
run scontrol suspend "$suspend"
begin_at
FIRST=$((FIRST - 1))
both_to suspended
squeue_to suspended-epoch SLURM_TIME_FORMAT=%s
until_state "$timeout_id" "TIMEOUT"
FIRST=$timeout_id
run squeue -h -a -t all -j "$timeout_id" -o "$JOBS" >"$OUT/squeue-timeout.txt"
run scontrol show job -o "$timeout_id" >"$OUT/scontrol-timeout.txt"
run scancel -u root
run scontrol update NodeName=n4 State=RESUME
sleep 8

echo "jobs that end"
begin_at
id=$(job configuring -N2 --wrap true)
until_state "$id" CONFIGURING
both_to configuring
until_state "$id" COMPLETED
job completed -N1 --wrap true >/dev/null
job no-output-folder -N1 -o "$HOOKS/missing/out" --wrap true >/dev/null
job exit-3 -N1 -o "$HOOKS/my logs/%j.out" --wrap 'exit 3' >/dev/null
job signal-9 -N1 --wrap 'kill -9 $$' >/dev/null
job step-signal -N1 --wrap 'srun sh -c "kill -11 \$\$"' >/dev/null
sleeper cancelled-pending -H >/dev/null
run scancel --name=cancelled-pending
id=$(sleeper cancelled -N1)
until_state "$id" RUNNING
run scancel "$id"
id=$(run sbatch --parsable -J het-cancelled -o /dev/null -N1 : -N1 --wrap 'exec sleep 900')
sleep 6
run scancel "$id"
id=$(sleeper preempted -N4 --exclusive)
until_state "$id" RUNNING
urgent=$(job urgent -N1 --exclusive -p urgent --wrap 'exec sleep 5')
until_state "$id" "PREEMPTED PENDING"
until_state "$urgent" COMPLETED
both_to ended
show_jobs >"$OUT/scontrol-ended-long.txt"

begin_at
echo "jobs that are being ended, or go back into the queue"
cancel=$(job completing-cancelled -N2 --wrap "$STUBBORN")
requeue=$(job completing-requeued -N2 --wrap "$STUBBORN")
until_state "$cancel" RUNNING
until_state "$requeue" RUNNING
hold=$(sleeper requeue-hold)
special=$(sleeper special-exit)
until_state "$hold" RUNNING
until_state "$special" RUNNING
run scancel "$cancel"
run scontrol requeue "$requeue"
run scontrol requeuehold "$hold"
run scontrol requeuehold State=SpecialExit "$special"
sleep 1
both_to completing
sleep 10
both_to requeued
touch "$HOOKS/refuse"
begin_at
sleeper launch-failed -w n3 >/dev/null
sleep 10
both_to launch-failed
sinfo_to launch-failed
rm "$HOOKS/refuse"
run scancel -u root
run scontrol update NodeName=n3 State=RESUME
sleep 8

echo "a node that dies"
begin_at
lost=$(sleeper node-fail -N2 -w n3,n4 --no-requeue)
back=$(sleeper node-fail-requeued -w n4 --requeue)
until_state "$lost" RUNNING
until_state "$back" RUNNING
"$LABS/node.sh" poweroff 4
until_state "$lost" "NODE_FAIL"
both_to node-fail
sinfo_to node-down
run scontrol show job "$lost" >"$OUT/scontrol-node-fail-long.txt"

echo "nobody answers"
kill "$(cat "$RUN/slurmctld.pid")"
sleep 1
error_to down-squeue squeue -h
error_to down-scontrol scontrol show job -o "$lost"
error_to down-sinfo sinfo -h
error_to down-sbatch sbatch --wrap true
error_to down-scancel scancel 1
run slurmctld -f "$RUN/slurm.conf"
run squeue -h >/dev/null
kill "$(cat "$RUN/munge/munged.pid")"
sleep 1
error_to munge-squeue squeue -h
error_to munge-sbatch sbatch --wrap true
error_to no-configuration env SLURM_CONF=/nonexistent/slurm.conf squeue -h
sed -i "s|$HOOKS|/srv/lab|g; s|$RUN|/run/lab|g" "$OUT"/*
echo "done: $(find "$OUT" -type f | wc -l) files in $OUT"
