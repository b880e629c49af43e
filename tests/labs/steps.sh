# shellcheck shell=bash
# Shared by the prepare.sh of each lab. The caller sets LAB_NAME (slurm, kubernetes) and sources lib.sh before.
# Exit statuses: 0 ready, 1 a step failed that should have worked, 3 this lab cannot run on this machine.

LABS=${MILKWEED_LAB:-$HOME/.cache/milkweed-lab}
PREPARE_LOG=$LABS/$LAB_NAME/prepare.log

say() { printf '%s: %s\n' "$LAB_NAME" "$*"; }

cannot() { # cannot REASON WHAT_TO_DO
  say "not here: $1. $2"
  exit 3
}

begin() { # one preparation at a time; the log starts afresh
  mkdir -p "$LABS/$LAB_NAME"
  exec 9>"$LABS/$LAB_NAME/prepare.lock"
  flock -n 9 || { say "waiting for another prepare.sh"; flock 9; }
  : >"$PREPARE_LOG"
}

# step WHAT FUNCTION [ARGS]: runs the function with errexit, its output in the log; prints what and how long.
# Do not call it from a condition: bash would ignore errexit in the function.
step() {
  local what=$1 t=$EPOCHREALTIME rc
  shift
  printf '%s: %s ... ' "$LAB_NAME" "$what"
  printf '\n== %s\n' "$what" >>"$PREPARE_LOG"
  set +e
  (set -euo pipefail; "$@") >>"$PREPARE_LOG" 2>&1 </dev/null 9>&-
  rc=$?
  set -e
  [ "$rc" != 0 ] || { printf '%s\n' "$(since "$t")"; return; }
  printf 'failed after %s; the last lines of %s:\n' "$(since "$t")" "$PREPARE_LOG"
  tail -n 15 "$PREPARE_LOG" | sed 's/^/    /'
  exit 1
}

have() { say "$* ... there"; } # for a step that is done already

is_debian() { [ -r /etc/debian_version ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null; }

may_unshare() { unshare --net --mount --pid --fork true 2>/dev/null; }

# apt COMMAND...: apt-get, with its downloads kept below $LABS; where it fails it refreshes the package lists and tries again.
apt() {
  mkdir -p "$LABS/debs/partial"
  local a=(nice apt-get -q -y -o "Dir::Cache::archives=$LABS/debs" -o APT::Sandbox::User=root -o DPkg::Lock::Timeout=120)
  export DEBIAN_FRONTEND=noninteractive
  "${a[@]}" "$@" || { "${a[@]}" update; "${a[@]}" "$@"; }
}

# unpack DIR PACKAGE...: unpacks Debian packages below DIR without installing them.
unpack() {
  local dir=$1 tmp deb
  shift
  tmp=$(mktemp -d "$LABS/unpack.XXXXXX")
  (cd "$tmp" && apt download "$@")
  for deb in "$tmp"/*.deb; do dpkg -x "$deb" "$dir"; done
  rm -rf "$tmp"
}

mirror() { # the mirror of Debian's main archive that apt uses here
  local release uri
  release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  # shellcheck disable=SC2016
  uri=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' |
    awk -v r="$release" '$1 == r && !found { print $2; found = 1 }')
  [ -n "$uri" ] || { echo "apt names no mirror for $release: check its sources, run apt-get update" >&2; return 1; }
  echo "$uri"
}

# tree SUITE DIR PACKAGE,...: a small Debian system in DIR.
tree() {
  local suite=$1 dir=$2 include=$3 uri
  [ -x "$LABS/debootstrap/usr/sbin/debootstrap" ] || unpack "$LABS/debootstrap" debootstrap
  uri=$(mirror)
  rm -rf "$dir"
  mkdir -p "$LABS/debs/$suite"
  DEBOOTSTRAP_DIR=$LABS/debootstrap/usr/share/debootstrap nice unshare --mount \
    "$LABS/debootstrap/usr/sbin/debootstrap" --variant=minbase --cache-dir="$LABS/debs/$suite" --include="$include" \
    "$suite" "$dir" "$uri"
}
