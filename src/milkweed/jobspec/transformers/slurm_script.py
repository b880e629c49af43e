"""The script that sbatch gets: it makes the job's folder on every node, runs the work, and leaves nothing behind.

Names of shell variables begin with `mw_`: a plain name could be one that the person exports.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .slurm_files import Carried, render_file, render_packed
from .slurm_shape import OWN_STEP
from .task_file import Place, Task, render_task_file

EXIT_NOT_DELIVERED = 78
"""The job's own exit code when what it needs was not brought to it: EX_CONFIG of sysexits.h."""
DELIVERY_S = 60
"""How long a job whose nodes do not see the run's folder waits for what is brought to it."""
COLLECT_S = 20
"""How long such a job waits until its output was taken, when somebody did so before."""
AWAY_S = 600
"""How long a job waits for a controller that is away before it starts its work, which could not start then."""
TASK = "own/task"

# Where a job has its folder on a node: the same words on every node, in every step.
PLACE = """\
for mw_base in "${SLURM_TMPDIR:-}" "${TMPDIR:-}" /tmp; do
  case $mw_base in /*) if [ -d "$mw_base" ] && [ -w "$mw_base" ]; then break; fi ;; esac
done
mw_folder=$mw_base/milkweed-jobspec-$(id -u)-$SLURM_JOB_ID"""

# A folder that somebody else made under this name is not taken.
_MAKE = """\
umask 077
if ! mkdir -m 700 -- "$mw_folder"; then
  if [ -L "$mw_folder" ] || [ ! -O "$mw_folder" ]; then exit 1; fi
  rm -rf -- "$mw_folder" && mkdir -m 700 -- "$mw_folder" || exit 1
fi
mw_made=1"""

# Settings of the allocation that a step must not take for its own.
NOT_FOR_STEPS = (
    *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS"),
    *("SLURM_NPROCS", "SLURM_NNODES", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_EXACT"),
    *("SLURM_MEM_PER_GPU", "SLURM_DISTRIBUTION", "SLURM_CPU_BIND", "SLURM_TRES_PER_TASK"),
    *("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU"),
    *("SLURM_GPU_BIND", "SLURM_EXCLUSIVE", "SLURM_OVERLAP", "SLURM_HINT", "SLURM_LABELIO"),
)

# Stays on every other node until the job is over, and takes the folder with it however that happens.
_KEEP = f"""\
{PLACE}
{_MAKE}
trap 'rm -rf -- "$mw_folder"; exit 143' TERM
head -c "$1" | tar -xf - --no-same-owner -C "$mw_folder" || exit 1
echo ready
cat >/dev/null
rm -rf -- "$mw_folder\""""

START = f"""\
{PLACE}
: >"$mw_folder/own/started"
JOBSPEC_FILES=$mw_folder/files
export JOBSPEC_FILES
exec /bin/sh "$mw_folder/$1\""""
"""Starts a task on whatever node it is; its first argument names the file that holds it. The script puts the
person's own umask before it."""

_PROLOGUE = f"""\
{PLACE}
mw_say() {{ printf 'milkweed: %s\\n' "$1" >&2; }}
mw_fail() {{ mw_say "${{1:-a file could not be written below $mw_folder}}"; exit "${{2:-1}}"; }}
mw_is_away() {{
  case $(scontrol ping 2>/dev/null) in *"is UP"*) return 1 ;; *"is DOWN"*) return 0 ;; *) return 1 ;; esac
}}
mw_step() {{
  while mw_srun "$@" & wait $!; mw_code=$?; [ "$mw_code" -ne 0 ]; do
    if [ -e "$mw_folder/own/started" ] || ! mw_is_away; then return "$mw_code"; fi
  done
}}
mw_srun() (
  mw_left={AWAY_S}
  while [ "$mw_left" -gt 0 ] && mw_is_away; do
    mw_left=$((mw_left - 1))
    sleep 1
  done
  unset {" ".join(NOT_FOR_STEPS)}
  exec srun "$@"
)
mw_made=
mw_keeper=
mw_finish() {{
  mw_code=$?
  trap - EXIT
  trap '' TERM
  if [ -n "$mw_keeper" ]; then exec 8>&-; wait "$mw_keeper"; fi
  if [ -n "$mw_logs" ]; then printf '%s\\n' "$mw_code" >"$mw_logs/.$mw_label.$SLURM_JOB_ID.exit"; fi
  if [ -n "$mw_made" ] && [ -z "$mw_shared" ]; then mw_wait_collected; fi
  if [ -n "$mw_made" ]; then rm -rf -- "$mw_folder"; fi
  exit "$mw_code"
}}
mw_wait_collected() {{
  : >"$mw_folder/own/over"
  mw_left={COLLECT_S * 10}
  while [ -e "$mw_folder/own/visited" ] && [ ! -e "$mw_folder/own/taken" ] && [ "$mw_left" -gt 0 ]; do
    mw_left=$((mw_left - 1))
    sleep 0.1
  done
}}
if [ -n "${{SLURM_ARRAY_TASK_ID:-}}" ]; then mw_label=$mw_label+$((SLURM_ARRAY_TASK_ID + 1)); fi
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
{_MAKE}
mkdir -- "$mw_folder/own" "$mw_folder/own/secrets" "$mw_folder/own/logs" "$mw_folder/files" || mw_fail
if [ -z "$mw_shared" ]; then
  mw_logs=$mw_folder/own/logs
  exec >>"$mw_logs/$mw_label.log" 2>&1
fi
printf '%s\\n' "${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}" >"$mw_logs/.$mw_label.$SLURM_JOB_ID.began\""""

_FETCH = f"""\
mw_from=$mw_record
if [ -z "$mw_shared" ]; then
  mw_from=$mw_folder/own/parcels
  : >"$mw_folder/own/wants"
  mw_left={DELIVERY_S * 10}
  while [ ! -d "$mw_from" ]; do
    if [ "$mw_left" -le 0 ]; then
      mw_say "this node does not see $mw_record, and nobody brought what is there"
      mw_fail "run it with --wait: then it is brought" {EXIT_NOT_DELIVERED}
    fi
    mw_left=$((mw_left - 1))
    sleep 0.1
  done
fi"""

_SPREAD = f"""\
mw_others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$mw_others" -gt 0 ]; then
  mkfifo "$mw_folder/own/feed" "$mw_folder/own/ready" || mw_fail
  tar -C "$mw_folder" --exclude=./own/all --exclude=./own/feed --exclude=./own/ready \\
    --exclude=./own/logs --exclude=./own/parcels -cf "$mw_folder/own/all" . || mw_fail
  mw_size=$(wc -c <"$mw_folder/own/all")
  mw_srun --relative=1 --nodes="$mw_others" --ntasks="$mw_others" --ntasks-per-node=1 \\
    {" ".join(OWN_STEP)} /bin/sh -c "$mw_keep" sh "$mw_size" <"$mw_folder/own/feed" >"$mw_folder/own/ready" &
  mw_keeper=$!
  exec 8>"$mw_folder/own/feed" 9<"$mw_folder/own/ready"
  cat "$mw_folder/own/all" >&8
  rm -f -- "$mw_folder/own/all"
  mw_ready=0
  while [ "$mw_ready" -lt "$mw_others" ] && read -r mw_line <&9; do mw_ready=$((mw_ready + 1)); done
  exec 9<&-
  if [ "$mw_ready" -lt "$mw_others" ]; then mw_fail "only $mw_ready of $mw_others other nodes took the files"; fi
fi"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """All that a script is made of."""

    run_id: str
    step_id: str
    record: str
    """The run's folder, as the machine that submits sees it."""
    work: Sequence[str]
    """The lines that do the work; the last one is the command whose exit code counts."""
    files: Sequence[Carried] = ()
    staged: Sequence[bytes] = ()
    """Packed files of the submitting machine."""
    parcels: Sequence[str] = ()
    """Those that were too large to travel here: the names of their archives in the run's folder."""
    secrets: Sequence[str] = ()


def make_label(step_id: str) -> str:
    """How the files of a step are called."""
    return step_id.replace("/", "+")


def render_script(body: Body) -> str:
    """The whole script; nothing in it is secret."""
    lines = [
        "#!/bin/sh",
        f"# milkweed jobspec: run {body.run_id}, step {body.step_id}",
        f"mw_record={shlex.quote(body.record)}",
        f"mw_label={shlex.quote(make_label(body.step_id))}",
        f"mw_keep={shlex.quote(_KEEP)}",
        f"mw_start=$(printf 'umask %s\\n%s' \"$(umask)\" {shlex.quote(START)})",
        _PROLOGUE,
        *(line for file in body.files for line in render_file(file)),
        *(line for packed in body.staged for line in _render_staged(packed)),
        *(_render_fetch(body) if body.parcels or body.secrets else ()),
        _SPREAD,
        *body.work,
    ]
    return "\n".join(lines) + "\n"


def _render_staged(packed: bytes) -> list[str]:
    return render_packed(packed, '| tar -xzf - --no-same-owner -C "$mw_folder/files"')


def _render_fetch(body: Body) -> list[str]:
    lines = [_FETCH]
    for name in body.parcels:
        source = f'"$mw_from/parcels/"{shlex.quote(name)}'
        lines.append(f'tar -xzf {source} --no-same-owner -C "$mw_folder/files" || mw_fail')
    for name in body.secrets:
        word = shlex.quote(name)
        lines.append(
            f'cat -- "$mw_from/secrets/"{word} >"$mw_folder/own/secrets/"{word} || mw_fail'
        )
    return [*lines, 'rm -rf -- "$mw_folder/own/parcels"']


def render_work(words: Sequence[str], *, output: str | None, error: str | None) -> list[str]:
    """Run a command of plain shell words to its end, with its output where it belongs."""
    to = [f">>{shlex.quote(output)}"] if output else []
    errors = [f"2>>{shlex.quote(error)}"] if error else ["2>&1"] if output else []
    return [" ".join([*words, *to, *errors, "8>&-", "&"]), "wait $!"]


def render_srun(arguments: Iterable[str], task: str = TASK) -> list[str]:
    """The words that start the tasks of a step."""
    plain = [shlex.quote(each) for each in arguments]
    return ["mw_step", *plain, "/bin/sh", "-c", '"$mw_start"', "sh", shlex.quote(task)]


def render_once(task: str = TASK) -> list[str]:
    """The words that start a task once, on the first node, with all that Slurm says of the allocation."""
    return ["/bin/sh", "-c", '"$mw_start"', "sh", shlex.quote(task)]


# A task: what every process of the work goes through, on its node

_SECRETS = "${mw_files%/files}/own/secrets"
_EACH = Place(
    first=("mw_files=$JOBSPEC_FILES",),
    secrets=_SECRETS,
    rank="$SLURM_PROCID",
    node="$SLURM_NODEID",
    nodes="${SLURM_STEP_NUM_NODES:-1}",
)
_ALONE = replace(_EACH, rank="0", node="0", nodes="${SLURM_JOB_NUM_NODES:-1}")


def render_task(task: Task) -> str:
    """The file that becomes the command."""
    return render_task_file(task, _ALONE if task.alone else _EACH)
