#!/bin/bash
# [VER=24] halves.sh PYTEST... : runs the tests of tests/slurm with the command PYTEST on two clusters at once, half of the files on
# each: most of their time they wait for Slurm. What the second half says is shown after the first. Exit status: 0 when both have
# passed, else that of one that has not.
# shellcheck disable=SC2317  # functions are called by traps
set -euo pipefail
S=$(dirname "$(readlink -f "$0")")
[ $# -gt 0 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }

said=$(mktemp)
halves=()
end() { # whatever ends this script ends both
  local rc=$? half
  trap '' HUP INT TERM
  for half in "${halves[@]}"; do
    kill "$half" 2>/dev/null || true
    wait "$half" || true
  done
  cat "$said"
  rm -f "$said"
  exit "$rc"
}
trap end EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

first=() second=()
for file in tests/slurm/test_*.py; do
  case $file in
    */test_[a-l]*) first+=("$file") ;;
    *) second+=("$file") ;;
  esac
done
env --default-signal=INT,QUIT "$S/with.sh" 6 -- "$@" "${first[@]}" &
halves+=($!)
env --default-signal=INT,QUIT "$S/with.sh" 6 -- "$@" "${second[@]}" >"$said" 2>&1 &
halves+=($!)
rc=0
for half in "${halves[@]}"; do wait "$half" || rc=$?; done
exit "$rc"
