#!/bin/bash
# prepare.sh [slurm] [kubernetes] [torch] : gets what the labs need, once; all without arguments. TRIXIE=1: Slurm 24.11 as well.
# TORCH=0: no torch, which takes 3 GB to fetch.
# 0: every lab asked for is ready, or cannot run here for the reason printed. 1: a preparation failed. 2: usage.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
[ $# -gt 0 ] || set -- slurm kubernetes torch
for lab in "$@"; do
  case $lab in slurm | kubernetes | torch) ;; *) echo "usage: prepare.sh [slurm] [kubernetes] [torch]" >&2; exit 2 ;; esac
done
status=0
for lab in "$@"; do
  rc=0
  "$here/$lab/prepare.sh" || rc=$?
  case $rc in 0 | 3) ;; *) status=1 ;; esac
done
exit $status
