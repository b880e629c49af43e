#!/bin/bash
# Once per machine, as root on Debian: installs Slurm (22.05 on Debian 12) without starting a daemon;
# with TRIXIE=1 also makes a Debian 13 tree with Slurm 24.11 for VER=24 up.sh.
set -euo pipefail
LAB_NAME=slurm
. "$(dirname "$(readlink -f "$0")")/lib.sh"
. "$S/../steps.sh"
PACKAGES="slurm-wlm slurmrestd munge tini"

install_packages() {
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then # install the daemons, start none of them
    # shellcheck disable=SC2064
    trap "rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  fi
  # shellcheck disable=SC2086
  apt install --no-install-recommends $PACKAGES iproute2
}
# for a Python of this machine, run in the tree
PYTHON_LIBRARIES="libffi8 libssl3t64 libsqlite3-0 libreadline8t64 libbz2-1.0 liblzma5 zlib1g libexpat1 libnsl2 libunwind8"

into_tree() { # into_tree TREE PACKAGE...
  # shellcheck disable=SC2016
  nice unshare --mount bash -euc 'r=$1; shift
    mount -t proc proc "$r/proc"
    mount --bind /dev "$r/dev"
    export DEBIAN_FRONTEND=noninteractive
    chroot "$r" apt-get -q update
    chroot "$r" apt-get -q -y install --no-install-recommends "$@"
    chroot "$r" apt-get clean' - "$@"
  rm -rf "$1"/var/lib/apt/lists/*
}
trixie() {
  local new=$TRIXIE_ROOT.new
  tree trixie "$new" iproute2,procps,ca-certificates
  printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d"
  chmod +x "$new/usr/sbin/policy-rc.d"
  touch "$new/etc/hosts"
  cp -L /etc/resolv.conf "$new/etc/resolv.conf"
  # shellcheck disable=SC2086
  into_tree "$new" $PACKAGES $PYTHON_LIBRARIES curl
  rm -rf "$TRIXIE_ROOT"
  mv "$new" "$TRIXIE_ROOT"
}

is_debian || cannot "this is not Debian" "Run it on Debian 12, for instance in a virtual machine"
is_root || cannot "it needs root, for packages and namespaces" "Run it as root"
may_unshare || cannot "this root may not make namespaces" "Use a virtual machine or a privileged container"
begin
missing=
for c in slurmd slurmctld slurmrestd munged tini ip; do command -v "$c" >/dev/null || missing="$missing $c"; done
if [ -n "$missing" ]; then step "install Slurm" install_packages; else have "Slurm"; fi
if [ -x "$TRIXIE_ROOT/usr/sbin/slurmd" ]; then
  have "Debian 13 tree"
  # shellcheck disable=SC2086
  has_python_libraries || step "add to the Debian 13 tree" into_tree "$TRIXIE_ROOT" $PYTHON_LIBRARIES
elif [ "${TRIXIE:-0}" = 1 ]; then
  step "make a Debian 13 tree with its Slurm" trixie
fi
say "ready: $(slurmd -V)"
