#!/bin/bash
# with.sh [NODES] -- CMD... : runs CMD inside a new cluster (see place.sh), in the current folder, and takes the cluster down
# afterwards, whatever happened. Exit status: CMD's. CMD sees
#   KUBECONFIG                   the administrator's
#   MILKWEED_KUBERNETES_LAB      how many nodes there are
#   MILKWEED_KUBERNETES_LAB_PID  the pid of this script, which is in the namespaces of this machine
# Where no cluster can run CMD is run without one, and MILKWEED_KUBERNETES_LAB_MISSING says why.
# MILKWEED_KUBERNETES_OWN=1 KUBECONFIG=... with.sh -- CMD...: on a cluster of yours instead, as its kubeconfig's current user. Never
# done unasked: tests make namespaces, a definition and roles there. See ../README.md.
# shellcheck disable=SC2317  # functions are called by traps
set -euo pipefail
NODES=2
usage() { sed -n '2,/^# shellcheck/{/^# shellcheck/!s/^# //p}' "$0" >&2; exit 2; }
if [ $# -gt 0 ] && [ "$1" != -- ]; then NODES=$1 && shift; fi
case $NODES in '' | 0 | *[!0-9]*) usage ;; esac
if [ $# -lt 2 ] || [ "$1" != -- ]; then usage; fi
shift
if [ -n "${MILKWEED_KUBERNETES_OWN:-}" ]; then
  [ -n "${KUBECONFIG:-}" ] || { echo "with.sh: MILKWEED_KUBERNETES_OWN needs a KUBECONFIG that says which cluster" >&2; exit 2; }
  nodes=$(kubectl get nodes -o name | wc -l)
  [ "$nodes" -gt 0 ] || { echo "with.sh: $KUBECONFIG leads to no cluster with nodes" >&2; exit 1; }
  exec env MILKWEED_KUBERNETES_LAB="$nodes" "$@"
fi
export NODES
unset MILKWEED_KUBERNETES_LAB MILKWEED_KUBERNETES_LAB_PID MILKWEED_KUBERNETES_LAB_MISSING
FRESH=1
. "$(dirname "$(readlink -f "$0")")/env.sh"
. "$W/images.sh"

why_not() { # prints why no cluster can run here; nothing where one can
  local p
  is_root || { echo "it needs root"; return; }
  for p in $PROGRAMS etcd; do
    [ -x "$BIN/$p" ] || { echo "there is no $p (tests/labs/prepare.sh kubernetes)"; return; }
  done
  unshare --net --mount --pid --fork true 2>/dev/null || { echo "this root may not make namespaces"; return; }
  have_images || echo "there are no images, or those of another version (tests/labs/prepare.sh kubernetes)"
}

missing=$(why_not)
if [ -n "$missing" ]; then
  export MILKWEED_KUBERNETES_LAB_MISSING="no Kubernetes here: $missing"
  echo "with.sh: $MILKWEED_KUBERNETES_LAB_MISSING" >&2
  unset KUBECONFIG
  exec "$@"
fi

# A name that no other with.sh uses; what a killed one left behind under it is cleared away. KUBERNETES_LAB=name: that name.
mkdir -p "$LAB" /run/lock
take() { # take NAME [-n]: waits until the name is free, or not
  KUBERNETES_LAB=$1
  exec 9>"/run/lock/milkweed-kubernetes-$1"
  flock ${2:-} 9
}
names=${KUBERNETES_LAB:-k8s k8sb}
for name in $names ""; do
  [ -n "$name" ] || { echo "with.sh: waiting for another with.sh" >&2 && take "${names%% *}" && break; }
  ! take "$name" -n || break
done
export KUBERNETES_LAB
. "$W/env.sh"
unset FRESH
if [ -e "/run/netns/$NAME-cp" ] || pid_of kube-apiserver >/dev/null; then
  [ -e "$RUN/with" ] || { echo "with.sh: a cluster is up: down.sh takes it down" >&2; exit 1; }
  "$W/down.sh" >/dev/null 9>&-
fi

down_after "$W/down.sh" "of Kubernetes"

# Nodes that are silent are noticed soon.
export NODE_GRACE=${NODE_GRACE:-8s} NODE_LEASE=${NODE_LEASE:-8}
"$W/up.sh" >"$LAB/with-$NAME.log" 2>&1 9>&- || { cat "$LAB/with-$NAME.log" >&2; exit 1; }
touch "$RUN/with"

{ # read as a whole before it runs: this file may change while CMD does
  export MILKWEED_KUBERNETES_LAB=$NODES MILKWEED_KUBERNETES_LAB_PID=$$
  run_child "$W/place.sh" inside "$@"
}
