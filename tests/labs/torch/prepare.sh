#!/bin/bash
# Gets, once, what the SPMD tests compare with: torch, for its torchrun, in a virtual environment of its own; and two releases of
# torchx with what they import, each in a plain folder, without torch. TORCH=0: without torch. MILKWEED_TORCH=FOLDER: a virtual
# environment that has it already. PYTHON: the Python to take, else the project's.
set -euo pipefail
LAB_NAME=torch
H=$(dirname "$(readlink -f "$0")")
. "$H/../lib.sh"
. "$H/../steps.sh"
TORCH_VERSION=2.13.0
VENV=$LABS/torch-$TORCH_VERSION
TORCHX="torchx==0.7.0 torchx-nightly==2026.10.26"
TORCHX_USED="torchx.specs, torchx.runner, torchx.components.dist, torchx.components.utils"
FITS='import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
TOOL=$LABS/torch/pip # a virtual environment with nothing but pip, while it is needed

find_python() { # as the Makefile does, but what its virtual environment was made with comes first
  local p
  for p in ${PYTHON:+"$PYTHON"} "$H/../../../.venv/bin/python" python3.13 python3.12 python3.11 python3; do
    ! "$p" -c "$FITS" >/dev/null 2>&1 || { PY=$p; return; }
  done
  cannot "no Python >= 3.11 and < 3.14 with venv and pip" "Install one (Debian: apt-get install python3-venv), or set PYTHON"
}
pip() { "$1/bin/python" -m pip --disable-pip-version-check "${@:2}"; } # pip VENV ARGS...
check_found() { # check_found REQUIREMENT [AND]: an index that cannot be reached, or has none for this Python, is no failure
  local found
  find_python
  "$PY" -m venv --clear "$TOOL"
  found=$(pip "$TOOL" index versions --pre "${1%%==*}" 2>&1 </dev/null) || true
  printf '\n== look for %s\n%s\n' "$1" "$found" >>"$PREPARE_LOG"
  tr -d , <<<"$found" | grep -qwF -- "${1##*==}" || cannot "pip finds no $1 for $("$PY" --version)" \
    "Let it reach an index that has it (PIP_INDEX_URL), or set PYTHON; what it said is in $PREPARE_LOG${2:-}"
}

# A folder is whole when a file says so, which is written last; one that works without it was made by hand, and is taken as it is.
is_whole() { [ "$(cat "$1/.whole" 2>/dev/null)" = "$2" ]; }
has_torch() {
  [ "$("$1/bin/python" -c 'import torch.distributed.run; print(torch.__version__.split("+")[0])' 2>/dev/null)" = "$TORCH_VERSION" ]
}

torch() { # scripts name the folder they are in, so they are told its later name
  local new=$VENV.new f
  "$PY" -m venv --clear --prompt "torch $TORCH_VERSION" "$new"
  TMPDIR=$new pip "$new" install --no-cache-dir "torch==$TORCH_VERSION" numpy
  grep -lIF "$new" "$new"/bin/* | while read -r f; do sed -i "s|$new|$VENV|g" "$f"; done
  has_torch "$new"
  rm -rf "$VENV"
  mv "$new" "$VENV"
  echo "$TORCH_VERSION" >"$VENV/.whole"
}
torchx() { # torchx FOLDER REQUIREMENT
  local new=$1.new
  rm -rf "$new"
  pip "$TOOL" install --target "$new" "$2"
  "$TOOL/bin/python" -c "import sys; sys.path.insert(0, '$new'); import $TORCHX_USED"
  echo "$2" >"$new/.whole"
  rm -rf "$1"
  mv "$new" "$1"
}

without=
begin
trap 'rm -rf "$TOOL"' EXIT
if [ -n "${MILKWEED_TORCH:-}" ]; then
  has_torch "$MILKWEED_TORCH" || cannot "$MILKWEED_TORCH has no torch $TORCH_VERSION" "Name a virtual environment that has it, or unset MILKWEED_TORCH"
  have "torch $TORCH_VERSION in $MILKWEED_TORCH"
elif is_whole "$VENV" "$TORCH_VERSION" && "$VENV/bin/python" -c ''; then
  have "torch $TORCH_VERSION"
elif [ -d "$VENV" ] && has_torch "$VENV"; then
  echo "$TORCH_VERSION" >"$VENV/.whole"
  have "torch $TORCH_VERSION"
elif [ "${TORCH:-1}" = 0 ]; then
  without=", but without torch, as TORCH=0 wants it: nothing is compared with torchrun, and those tests are skipped"
else
  check_found "torch==$TORCH_VERSION" ". Without it nothing is compared with torchrun: those tests are skipped, and fail in CI unless TORCH=0"
  step "install torch $TORCH_VERSION" torch
fi
for r in $TORCHX; do
  folder=$LABS/${r/==/-}
  case $r in *-nightly==*) folder=$LABS/${r%%==*} ;; esac
  if is_whole "$folder" "$r"; then
    have "$r"
  else
    check_found "$r"
    step "install $r" torchx "$folder" "$r"
  fi
done
[ -z "$without" ] || say "not here: TORCH=0 leaves torch out"
say "ready in $LABS$without"
