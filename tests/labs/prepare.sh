#!/bin/bash
# prepare.sh [slurm] [kubernetes] : gets what the labs need, once; both without arguments. TRIXIE=1: Slurm 24.11 as well.
# 0: every lab asked for is ready, or cannot run here for the reason printed. 1: a preparation failed. 2: usage.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
[ $# -gt 0 ] || set -- slurm kubernetes
for lab in "$@"; do
  case $lab in slurm | kubernetes) ;; *) echo "usage: prepare.sh [slurm] [kubernetes]" >&2; exit 2 ;; esac
done
status=0
for lab in "$@"; do
  rc=0
  "$here/$lab/prepare.sh" || rc=$?
  case $rc in 0 | 3) ;; *) status=1 ;; esac
done
exit $status
