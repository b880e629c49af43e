#!/bin/bash
# record-accounting.sh 22|24 DIR : as record.sh, but what sacct prints into 22.05/sacct-*.txt or 24.11/sacct-*.txt. The lab has no
# accounting: DIR holds Debian's slurmdbd, slurm-wlm-mysql-plugin, mariadb-server-core, libmariadb3, libaio1
# (libaio1t64 in Debian 13) and liburing2, unpacked with `dpkg -x`. Takes about three minutes, and leaves no daemon behind.
set -euo pipefail
HERE=$(dirname "$(readlink -f "$0")")
LABS=$HERE/../../labs/slurm
export SLURM_LAB=accounts VER=${1:-22}
case $VER in 22) OUT=$HERE/22.05 ;; 24) OUT=$HERE/24.11 ;; *) echo "record-accounting.sh: 22 or 24" >&2; exit 2 ;; esac
DIR=$(readlink -f "$2")
RUN=${MILKWEED_LAB:-$HOME/.cache/milkweed-lab}/slurm/run-$SLURM_LAB
DB=$RUN/db
FIELDS=JobID,JobIDRaw,State,ExitCode,NodeList,Start,End,Timelimit,Partition,Reason,Comment,JobName # as make_sacct asks
PLUGINS=/usr/lib/x86_64-linux-gnu/slurm-wlm
STUBBORN='trap "" TERM; while :; do sleep 1; done'
MARK=milkweed:1:0b0c5f8e-0000-4000-8000-00000000000
cd /

run() { timeout 100 "$LABS/login" "$@" </dev/null; }
theirs() { run env LD_LIBRARY_PATH="$DIR/usr/lib/x86_64-linux-gnu" "$@"; } # a program of DIR
job() { run sbatch --parsable -o /dev/null -t 60 -J "$@"; }
sleeper() { job "$@" --wrap 'exec sleep 900'; }
state_of() { run squeue -h -a -t all -j "$1" -o %T 2>/dev/null | paste -sd' '; }
until_state() { # until_state ID STATE
  local _
  for _ in $(seq 600); do
    case " $(state_of "$1") " in *" $2 "*) return ;; esac
    sleep 0.2
  done
  echo "record-accounting.sh: job $1 never was $2" >&2
  return 1
}
last() { run squeue -h -a -t all -o %A | sort -n | tail -1; }
sacct_to() { # sacct_to NAME FIRST [VARIABLE=VALUE] : the jobs from FIRST on
  sleep 3 # the controller hands over what has ended now and then
  run env ${3:+"$3"} sacct -n -P -X -j "$(seq -s, "$2" "$(last)")" -o "$FIELDS" >"$OUT/sacct-$1.txt"
}
controller() { # controller [LINE...] : starts it again, with more lines in its configuration
  kill "$(cat "$RUN/slurmctld.pid")"
  while [ -e "/proc/$(cat "$RUN/slurmctld.pid" 2>/dev/null || echo none)" ]; do sleep 0.2; done
  printf '%s\n' "$@" >>"$RUN/slurm.conf"
  run slurmctld -f "$RUN/slurm.conf"
  until run sinfo -h >/dev/null 2>&1; do sleep 0.2; done
}

trap '"$LABS/down.sh"' EXIT # ends all that runs on the login node, the database too
MIN_JOB_AGE=1200 SLURMD_TIMEOUT=10 KILL_WAIT=2 SCHED_PARAMS=batch_sched_delay=0,sched_interval=1,bf_interval=1 \
  EXTRA_CONF="Licenses=gold:1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL PriorityTier=10
PartitionName=limited Nodes=ALL MaxTime=30" "$LABS/up.sh" 4 >&2

echo "a database, and the accounting"
mkdir -p "$DB"
MARIADB=("$DIR/usr/sbin/mariadbd" --no-defaults --user=root --basedir="$DIR/usr" --datadir="$DB" --socket="$DB/sock"
  --lc-messages-dir="$DIR/usr/share/mysql" --bind-address=127.0.0.1 --skip-grant-tables --skip-name-resolve)
timeout 600 "$LABS/login" env LD_LIBRARY_PATH="$DIR/usr/lib/x86_64-linux-gnu" "${MARIADB[@]}" </dev/null >"$RUN/log/db.log" 2>&1 &
disown
for _ in $(seq 100); do [ ! -S "$DB/sock" ] || break; sleep 0.2; done
cat >"$RUN/slurmdbd.conf" <<C
AuthType=auth/munge
AuthInfo=socket=$RUN/munge/munge.sock
DbdHost=head
SlurmUser=root
LogFile=$RUN/log/slurmdbd.log
PidFile=$RUN/slurmdbd.pid
PluginDir=$PLUGINS:$DIR$PLUGINS
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=root
StoragePass=none
C
chmod 600 "$RUN/slurmdbd.conf"
theirs "$DIR/usr/sbin/slurmdbd"
sed -i '/^AccountingStorageType/d' "$RUN/slurm.conf"
printf '%s\n' AccountingStorageType=accounting_storage/slurmdbd AccountingStorageHost=head \
  "AccountingStoragePass=$RUN/munge/munge.sock" >>"$RUN/slurm.conf"
until run sacctmgr -n show cluster lab 2>/dev/null | grep -q lab; do
  run sacctmgr -i add cluster lab >/dev/null 2>&1 || sleep 0.5
done
rm -f "$RUN/state/clustername" # 24.11 takes no number for the cluster but its own
controller

echo "comments are not kept unless the site says so"
job no-comment -N1 --comment "${MARK}1:0:0:no-comment" --wrap true >/dev/null
until_state "$(last)" COMPLETED
sacct_to no-comment 1
run sacct -n -P -X -j 99999 -o "$FIELDS" >"$OUT/sacct-unknown-job.txt"
controller AccountingStoreFlags=job_comment

echo "jobs that end"
first=$(($(last) + 1))
timeout_id=$(job timeout -N1 -t 1 --wrap 'exec sleep 900')
job completed -N2 --comment "${MARK}2:0:0:completed" --wrap true >/dev/null
job exit-3 -N1 --comment "${MARK}3:2:0:exit-3" --wrap 'exit 3' >/dev/null
# shellcheck disable=SC2016
job signal-9 -N1 --wrap 'kill -9 $$' >/dev/null
# shellcheck disable=SC2016
job step-signal -N1 --wrap 'srun sh -c "kill -11 \$\$"' >/dev/null
job no-output-folder -N1 -o "$RUN/missing/out" --wrap true >/dev/null
job 'odd | name = 1' -N1 --comment 'State=FAILED | x' --wrap true >/dev/null
job $'two\nlines' -N1 --comment $'a\nb' --wrap true >/dev/null
job $'12|12|FAILED\n13|13|FAILED' -N1 --wrap true >/dev/null
job unlimited -N1 -t UNLIMITED --wrap true >/dev/null
job days -N1 -t 2-12:30:15 --wrap true >/dev/null
run sbatch --parsable -o /dev/null -J partition-limit -p limited -N1 --wrap true >/dev/null
sleeper cancelled-pending -H >/dev/null
run scancel --name=cancelled-pending
id=$(sleeper cancelled -N1 --comment "${MARK}4:0:0:cancelled")
until_state "$id" RUNNING
run scancel "$id"
# shellcheck disable=SC2016
job array -N1 --array=1-2 --wrap 'exit $((SLURM_ARRAY_TASK_ID - 1))' >/dev/null
id=$(run sbatch --parsable -J het -o /dev/null --comment "${MARK}5:0:0:het" -t 60 -N1 : --comment "${MARK}5:0:0:het" -N2 -t 60 --wrap true)
until_state "$id" COMPLETED
id=$(run sbatch --parsable -J het-cancelled -o /dev/null -t 60 -N1 : -N1 -t 60 --wrap 'exec sleep 900')
until_state "$id" RUNNING
run scancel "$id"
failing=$(job failed -N1 --wrap 'exit 1')
sleeper never -d "afterok:$failing" --kill-on-invalid-dep=yes >/dev/null
until_state "$timeout_id" TIMEOUT
id=$(sleeper preempted -N4 --exclusive)
until_state "$id" RUNNING
urgent=$(job urgent -N1 --exclusive -p urgent --wrap 'exec sleep 2')
until_state "$urgent" COMPLETED
sacct_to ended "$first"
sacct_to ended-epoch "$first" SLURM_TIME_FORMAT=%s

echo "jobs that wait, run, are being ended, or come anew"
first=$(($(last) + 1))
id=$(sleeper running -N1 --comment "${MARK}6:0:0:running")
until_state "$id" RUNNING
id=$(sleeper suspended -N1)
until_state "$id" RUNNING
run scontrol suspend "$id"
id=$(sleeper requeued -N1)
until_state "$id" RUNNING
run scontrol requeue "$id"
id=$(job completing -N1 --wrap "$STUBBORN")
until_state "$id" RUNNING
run scancel "$id"
sleeper JobHeldUser -N1 -H --comment "${MARK}7:0:0:held" >/dev/null
id=$(sleeper licensed -N1 -L gold:1)
until_state "$id" RUNNING
sleeper Licenses -N1 -L gold:1 >/dev/null
sleeper BeginTime -N1 --begin=now+1hour >/dev/null
job pending-array --array=1-3 -H --wrap 'exec sleep 900' >/dev/null
run sbatch --parsable -J het-pending -o /dev/null -t 60 -N1 -H : -N1 -H -t 60 --wrap 'exec sleep 900' >/dev/null
sacct_to waiting "$first"
sacct_to waiting-epoch "$first" SLURM_TIME_FORMAT=%s

echo "a node that dies"
first=$(($(last) + 1))
lost=$(sleeper node-fail -N2 -w n3,n4 --no-requeue)
back=$(sleeper node-fail-requeued -w n4 --requeue)
until_state "$lost" RUNNING
until_state "$back" RUNNING
"$LABS/node.sh" poweroff 4
until_state "$lost" NODE_FAIL
sacct_to node-fail "$first"

echo "nobody answers"
kill "$(cat "$RUN/slurmdbd.pid")"
sleep 1
run sacct -n -P -X -j 1 -o "$FIELDS" >"$RUN/said" 2>"$OUT/error-down-sacct.txt" || echo "exit code $?"
cat "$RUN/said"
sed -i "s|$RUN|/run/lab|g" "$OUT"/*sacct*
echo "done: $(find "$OUT" -name '*sacct*' | wc -l) files in $OUT"
