#!/bin/bash
# [VER=24] with.sh [NODES] -- CMD... : runs CMD on the login node of a cluster of its own, in the current folder, and takes the
# cluster down afterwards, whatever happened. Exit status: CMD's. CMD sees
#   MILKWEED_SLURM_LAB          the cluster's name
#   MILKWEED_SLURM_LAB_OUTSIDE  the pid of this script, which is outside of the login node's namespaces
# Where no cluster can run CMD is run without one, and MILKWEED_SLURM_LAB_MISSING says why.
# shellcheck disable=SC2317  # functions are called by traps
set -euo pipefail
VER=${VER:-22}
NODES=4
usage() { sed -n '2,/^# shellcheck/{/^# shellcheck/!s/^# //p}' "$0" >&2; exit 2; }
if [ $# -gt 0 ] && [ "$1" != -- ]; then NODES=$1 && shift; fi
case $NODES in '' | 0 | *[!0-9]*) usage ;; esac
case $VER in 22 | 24) ;; *) usage ;; esac
if [ $# -lt 2 ] || [ "$1" != -- ]; then usage; fi
shift
export VER
unset MILKWEED_SLURM_LAB MILKWEED_SLURM_LAB_OUTSIDE MILKWEED_SLURM_LAB_MISSING
. "$(dirname "$(readlink -f "$0")")/lib.sh"

why_not() { # why_not PROGRAM: prints why no cluster can run here, or why PROGRAM cannot run on it; nothing where they can
  local c program
  is_root || { echo "it needs root"; return; }
  for c in slurmd slurmctld munged tini ip; do
    command -v "$c" >/dev/null || { echo "there is no $c (tests/labs/prepare.sh slurm)"; return; }
  done
  unshare --net --mount --pid --fork true 2>/dev/null || { echo "this root may not make namespaces"; return; }
  [ "$VER" = 24 ] || return 0
  [ -x "$TRIXIE_ROOT/usr/sbin/slurmd" ] || { echo "there is no Slurm 24.11 (TRIXIE=1 tests/labs/prepare.sh slurm)"; return; }
  case $PWD/ in
    /usr/local/*) ;;
    /etc/* | /run/* | /usr/* | /var/*) echo "$PWD is not in its Debian 13 tree" && return ;;
  esac
  program=$(readlink -f "$(command -v "$1" || true)" || true)
  case $program in
    /usr/local/*) ;;
    /usr/bin/python3.*) has_python_libraries || echo "$program lacks libraries in its Debian 13 tree (tests/labs/prepare.sh slurm)" ;;
    /usr/* | /bin/* | /lib*) [ -x "$TRIXIE_ROOT$program" ] || echo "$program is not in its Debian 13 tree" ;;
  esac
}

missing=$(why_not "$1")
if [ -n "$missing" ]; then
  export MILKWEED_SLURM_LAB_MISSING="no Slurm $VER here: $missing"
  echo "with.sh: $MILKWEED_SLURM_LAB_MISSING" >&2
  exec "$@"
fi

# A name that no other with.sh uses; what a killed one left behind under it is cleared away. SLURM_LAB=name: that name.
# Locks are for the whole machine, as the namespaces are, whatever $MILKWEED_LAB is.
mkdir -p "$LAB" /run/lock
wanted=${SLURM_LAB:-}
for SLURM_LAB in ${wanted:-t$VER t${VER}b t${VER}c t${VER}d}; do
  exec 9>"/run/lock/milkweed-slurm-$SLURM_LAB"
  ! flock -n 9 || break
  SLURM_LAB=
done
[ -n "$SLURM_LAB" ] || { echo "with.sh: ${wanted:-every name for a cluster} is in use" >&2; exit 1; }
export SLURM_LAB
. "$S/lib.sh"
if [ -e "/run/netns/$NAME-head" ]; then
  [ -z "$wanted" ] || { echo "with.sh: the cluster $NAME is up: down.sh takes it down" >&2; exit 1; }
  "$S/down.sh" >/dev/null 9>&-
fi

# What CMD needs below /tmp stays shared there.
for folder in "$PWD" "$(dirname "$(dirname "$(command -v "$1" || echo /-/-)")")"; do
  case $folder in /tmp/*) SHARED_TMP="${SHARED_TMP:-} $folder" ;; esac
done
export SHARED_TMP=${SHARED_TMP:-}

down_after "$S/down.sh" "$NAME"

# Faults are seen soon, and jobs start at once. Answers of nodes count when their whole round is over, which a dead node keeps open
# for MESSAGE_TIMEOUT, and a round begins every third of SLURMD_TIMEOUT: with less of that the living are called dead with it.
export SLURMD_TIMEOUT=${SLURMD_TIMEOUT:-10} MESSAGE_TIMEOUT=${MESSAGE_TIMEOUT:-4} KILL_WAIT=${KILL_WAIT:-2}
export SCHED_PARAMS=${SCHED_PARAMS:-batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1}
# Jobs of "debug" take the nodes of those in "spare", which go back into the queue, and of those in "scrap", which end.
EXTRA_CONF="PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=spare Nodes=ALL MaxTime=INFINITE PriorityTier=0 PreemptMode=REQUEUE
PartitionName=scrap Nodes=ALL MaxTime=INFINITE PriorityTier=0 PreemptMode=CANCEL
${EXTRA_CONF:-}"
export EXTRA_CONF
"$S/up.sh" "$NODES" >"$LAB/with-$NAME.log" 2>&1 9>&- || { cat "$LAB/with-$NAME.log" >&2; exit 1; }

{ # read as a whole before it runs: this file may change while CMD does
  export MILKWEED_SLURM_LAB=$NAME MILKWEED_SLURM_LAB_OUTSIDE=$$
  run_child "$S/login" "$@"
}
