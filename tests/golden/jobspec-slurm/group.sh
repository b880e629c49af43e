#!/bin/sh
# milkweed jobspec: run 11111111-2222-4333-8444-555555555555, step g
mw_record=<home>/jobspec/11111111-2222-4333-8444-555555555555
mw_label=g
mw_keep='for mw_base in "${SLURM_TMPDIR:-}" "${TMPDIR:-}" /tmp; do
  case $mw_base in /*) if [ -d "$mw_base" ] && [ -w "$mw_base" ]; then break; fi ;; esac
done
mw_folder=$mw_base/milkweed-jobspec-$(id -u)-$SLURM_JOB_ID
umask 077
if ! mkdir -m 700 -- "$mw_folder"; then
  if [ -L "$mw_folder" ] || [ ! -O "$mw_folder" ]; then exit 1; fi
  rm -rf -- "$mw_folder" && mkdir -m 700 -- "$mw_folder" || exit 1
fi
mw_made=1
trap '"'"'rm -rf -- "$mw_folder"; exit 143'"'"' TERM
head -c "$1" | tar -xf - --no-same-owner -C "$mw_folder" || exit 1
echo ready
cat >/dev/null
rm -rf -- "$mw_folder"'
mw_start=$(printf 'umask %s\n%s' "$(umask)" 'for mw_base in "${SLURM_TMPDIR:-}" "${TMPDIR:-}" /tmp; do
  case $mw_base in /*) if [ -d "$mw_base" ] && [ -w "$mw_base" ]; then break; fi ;; esac
done
mw_folder=$mw_base/milkweed-jobspec-$(id -u)-$SLURM_JOB_ID
: >"$mw_folder/own/started"
JOBSPEC_FILES=$mw_folder/files
export JOBSPEC_FILES
exec /bin/sh "$mw_folder/$1"')
for mw_base in "${SLURM_TMPDIR:-}" "${TMPDIR:-}" /tmp; do
  case $mw_base in /*) if [ -d "$mw_base" ] && [ -w "$mw_base" ]; then break; fi ;; esac
done
mw_folder=$mw_base/milkweed-jobspec-$(id -u)-$SLURM_JOB_ID
mw_say() { printf 'milkweed: %s\n' "$1" >&2; }
mw_fail() { mw_say "${1:-a file could not be written below $mw_folder}"; exit "${2:-1}"; }
mw_is_away() {
  case $(scontrol ping 2>/dev/null) in *"is UP"*) return 1 ;; *"is DOWN"*) return 0 ;; *) return 1 ;; esac
}
mw_step() {
  while mw_srun "$@" & wait $!; mw_code=$?; [ "$mw_code" -ne 0 ]; do
    if [ -e "$mw_folder/own/started" ] || ! mw_is_away; then return "$mw_code"; fi
  done
}
mw_srun() (
  mw_left=600
  while [ "$mw_left" -gt 0 ] && mw_is_away; do
    mw_left=$((mw_left - 1))
    sleep 1
  done
  unset SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_NTASKS SLURM_NPROCS SLURM_NNODES SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_EXACT SLURM_MEM_PER_GPU SLURM_DISTRIBUTION SLURM_CPU_BIND SLURM_TRES_PER_TASK SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_GPU_BIND SLURM_EXCLUSIVE SLURM_OVERLAP SLURM_HINT SLURM_LABELIO
  exec srun "$@"
)
mw_made=
mw_keeper=
mw_finish() {
  mw_code=$?
  trap - EXIT
  trap '' TERM
  if [ -n "$mw_keeper" ]; then exec 8>&-; wait "$mw_keeper"; fi
  if [ -n "$mw_logs" ]; then printf '%s\n' "$mw_code" >"$mw_logs/.$mw_label.$SLURM_JOB_ID.exit"; fi
  if [ -n "$mw_made" ] && [ -z "$mw_shared" ]; then mw_wait_collected; fi
  if [ -n "$mw_made" ]; then rm -rf -- "$mw_folder"; fi
  exit "$mw_code"
}
mw_wait_collected() {
  : >"$mw_folder/own/over"
  mw_left=200
  while [ -e "$mw_folder/own/visited" ] && [ ! -e "$mw_folder/own/taken" ] && [ "$mw_left" -gt 0 ]; do
    mw_left=$((mw_left - 1))
    sleep 0.1
  done
}
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then mw_label=$mw_label+$((SLURM_ARRAY_TASK_ID + 1)); fi
mw_shared=
mw_logs=
if [ -d "$mw_record/logs" ] && [ -w "$mw_record/logs" ]; then
  mw_shared=1
  mw_logs=$mw_record/logs
  umask 077
  exec >>"$mw_logs/$mw_label.log" 2>&1
fi
trap mw_finish EXIT
trap 'exit 143' TERM
umask 077
if ! mkdir -m 700 -- "$mw_folder"; then
  if [ -L "$mw_folder" ] || [ ! -O "$mw_folder" ]; then exit 1; fi
  rm -rf -- "$mw_folder" && mkdir -m 700 -- "$mw_folder" || exit 1
fi
mw_made=1
mkdir -- "$mw_folder/own" "$mw_folder/own/secrets" "$mw_folder/own/logs" "$mw_folder/files" || mw_fail
if [ -z "$mw_shared" ]; then
  mw_logs=$mw_folder/own/logs
  exec >>"$mw_logs/$mw_label.log" 2>&1
fi
printf '%s\n' "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" >"$mw_logs/.$mw_label.$SLURM_JOB_ID.began"
cat <<'<end>' >"$mw_folder"/own/controller.py || mw_fail
<controller>
<end>
cat <<'MILKWEED_d60ed87aebf4' >"$mw_folder"/own/plan.json || mw_fail
{
 "items": [
  {
   "id": "g/a/1",
   "needs": [],
   "label": "g+a+1",
   "argv": [
    "srun",
    "--ntasks=1",
    "--cpus-per-task=1",
    "--exact",
    "--mem=0",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--quiet",
    "/bin/sh",
    "-c",
    "",
    "sh",
    "own/task-0.0"
   ],
   "within": [
    "g"
   ],
   "cores": 1,
   "gpus": 0
  },
  {
   "id": "g/a/2",
   "needs": [],
   "label": "g+a+2",
   "argv": [
    "srun",
    "--ntasks=1",
    "--cpus-per-task=1",
    "--exact",
    "--mem=0",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--quiet",
    "/bin/sh",
    "-c",
    "",
    "sh",
    "own/task-0.1"
   ],
   "within": [
    "g"
   ],
   "cores": 1,
   "gpus": 0
  },
  {
   "id": "g/a",
   "needs": [
    [
     "g/a/1",
     "afterany"
    ],
    [
     "g/a/2",
     "afterany"
    ]
   ],
   "inner": [
    "g/a/1",
    "g/a/2"
   ]
  },
  {
   "id": "g/in/b",
   "needs": [
    [
     "g/a",
     "afterok"
    ]
   ],
   "label": "g+in+b",
   "argv": [
    "srun",
    "--ntasks=2",
    "--cpus-per-task=1",
    "--exact",
    "--mem=0",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--quiet",
    "--label",
    "/bin/sh",
    "-c",
    "",
    "sh",
    "own/task-2"
   ],
   "within": [
    "g",
    "g/in"
   ],
   "cores": 2,
   "gpus": 0
  },
  {
   "id": "g/in",
   "needs": [
    [
     "g/a",
     "afterok"
    ],
    [
     "g/in/b",
     "afterany"
    ]
   ],
   "inner": [
    "g/in/b"
   ]
  },
  {
   "id": "g/c",
   "needs": [
    [
     "g/in",
     "afterany"
    ]
   ],
   "label": "g+c",
   "argv": [
    "/bin/sh",
    "-c",
    "",
    "sh",
    "own/task-3"
   ],
   "within": [
    "g"
   ]
  }
 ],
 "groups": {
  "g": {
   "cores": 4,
   "gpus": 0
  },
  "g/in": {
   "cores": 2,
   "gpus": 0,
   "limit_s": 30
  }
 },
 "unset": [
  "SLURM_CPUS_PER_TASK",
  "SRUN_CPUS_PER_TASK",
  "SLURM_NTASKS_PER_NODE",
  "SLURM_NTASKS",
  "SLURM_NPROCS",
  "SLURM_NNODES",
  "SLURM_MEM_PER_NODE",
  "SLURM_MEM_PER_CPU",
  "SLURM_EXACT",
  "SLURM_MEM_PER_GPU",
  "SLURM_DISTRIBUTION",
  "SLURM_CPU_BIND",
  "SLURM_TRES_PER_TASK",
  "SLURM_GPUS",
  "SLURM_GPUS_PER_NODE",
  "SLURM_GPUS_PER_TASK",
  "SLURM_NTASKS_PER_GPU",
  "SLURM_GPU_BIND",
  "SLURM_EXCLUSIVE",
  "SLURM_OVERLAP",
  "SLURM_HINT",
  "SLURM_LABELIO"
 ]
}
MILKWEED_d60ed87aebf4
cat <<'MILKWEED_1395b6dc371c' >"$mw_folder"/own/task-0.0 || mw_fail
mw_files=$JOBSPEC_FILES
export X=1
export JOBSPEC_RUN=11111111-2222-4333-8444-555555555555
export JOBSPEC_STEP=g/a
export JOBSPEC_FILES="$mw_files"
export JOBSPEC_TASK_RANK="$SLURM_PROCID"
export JOBSPEC_TASKS=1
export JOBSPEC_NODE="$SLURM_NODEID"
export JOBSPEC_NODES="${SLURM_STEP_NUM_NODES:-1}"
export JOBSPEC_REPLICA=0
cd -- /srv || exit 1
exec echo 'a b'
MILKWEED_1395b6dc371c
cat <<'MILKWEED_9f83db057d4e' >"$mw_folder"/own/task-0.1 || mw_fail
mw_files=$JOBSPEC_FILES
export X=1
export JOBSPEC_RUN=11111111-2222-4333-8444-555555555555
export JOBSPEC_STEP=g/a
export JOBSPEC_FILES="$mw_files"
export JOBSPEC_TASK_RANK="$SLURM_PROCID"
export JOBSPEC_TASKS=1
export JOBSPEC_NODE="$SLURM_NODEID"
export JOBSPEC_NODES="${SLURM_STEP_NUM_NODES:-1}"
export JOBSPEC_REPLICA=1
cd -- /srv || exit 1
exec echo 'a b'
MILKWEED_9f83db057d4e
cat <<'MILKWEED_51a0dc087984' >"$mw_folder"/own/task-2 || mw_fail
mw_files=$JOBSPEC_FILES
export X=1
export JOBSPEC_RUN=11111111-2222-4333-8444-555555555555
export JOBSPEC_STEP=g/in/b
export JOBSPEC_FILES="$mw_files"
export JOBSPEC_TASK_RANK="$SLURM_PROCID"
export JOBSPEC_TASKS=2
export JOBSPEC_NODE="$SLURM_NODEID"
export JOBSPEC_NODES="${SLURM_STEP_NUM_NODES:-1}"
cd -- /srv || exit 1
exec true
MILKWEED_51a0dc087984
cat <<'MILKWEED_6766b49a599e' >"$mw_folder"/own/task-3 || mw_fail
mw_files=$JOBSPEC_FILES
export X=1
export JOBSPEC_RUN=11111111-2222-4333-8444-555555555555
export JOBSPEC_STEP=g/c
export JOBSPEC_FILES="$mw_files"
export JOBSPEC_TASK_RANK="0"
export JOBSPEC_TASKS=1
export JOBSPEC_NODE="0"
export JOBSPEC_NODES="${SLURM_JOB_NUM_NODES:-1}"
cd -- /srv || exit 1
exec true
MILKWEED_6766b49a599e
mw_others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$mw_others" -gt 0 ]; then
  mkfifo "$mw_folder/own/feed" "$mw_folder/own/ready" || mw_fail
  tar -C "$mw_folder" --exclude=./own/all --exclude=./own/feed --exclude=./own/ready \
    --exclude=./own/logs --exclude=./own/parcels -cf "$mw_folder/own/all" . || mw_fail
  mw_size=$(wc -c <"$mw_folder/own/all")
  mw_srun --relative=1 --nodes="$mw_others" --ntasks="$mw_others" --ntasks-per-node=1 \
    --overlap --mem=0 --gres=none --cpu-bind=none --mpi=none --kill-on-bad-exit=1 --quiet /bin/sh -c "$mw_keep" sh "$mw_size" <"$mw_folder/own/feed" >"$mw_folder/own/ready" &
  mw_keeper=$!
  exec 8>"$mw_folder/own/feed" 9<"$mw_folder/own/ready"
  cat "$mw_folder/own/all" >&8
  rm -f -- "$mw_folder/own/all"
  mw_ready=0
  while [ "$mw_ready" -lt "$mw_others" ] && read -r mw_line <&9; do mw_ready=$((mw_ready + 1)); done
  exec 9<&-
  if [ "$mw_ready" -lt "$mw_others" ]; then mw_fail "only $mw_ready of $mw_others other nodes took the files"; fi
fi
command -v python3 >/dev/null || mw_fail 'a group needs python3 on its first node'
python3 "$mw_folder/own/controller.py" "$mw_folder/own/plan.json" "$mw_start" "$mw_logs" 8>&- &
wait $!
