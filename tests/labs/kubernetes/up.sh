#!/bin/bash
# [NODES=1] up.sh : starts a Kubernetes cluster on this machine. NODES=0: the control plane only, on 127.0.0.1:6443, without root.
# The administrator's kubeconfig: $RUN/admin.kubeconfig. For more knobs see ../README.md.
set -euo pipefail
FRESH=1
. "$(dirname "$(readlink -f "$0")")/env.sh"
. "$W/images.sh"
t=$EPOCHREALTIME
lap() { echo "up: $* after $(since "$t")"; }
fail() { echo "up.sh: $1" >&2; exit 1; }
for p in $PROGRAMS etcd; do
  [ -x "$BIN/$p" ] || fail "no $p: run ../prepare.sh kubernetes"
done
if [ "$NODES" != 0 ]; then
  is_root || fail "nodes need root (NODES=0 does not)"
  have_images || fail "no images, or those of another version: run ../prepare.sh kubernetes"
fi
if [ -e "/run/netns/$NAME-cp" ] || pid_of kube-apiserver >/dev/null; then fail "already up: run down.sh first"; fi

rm -rf "$RUN"
mkdir -p "$RUN/log"
for k in $KNOBS; do printf '%s=%q\n' "$k" "${!k:-}"; done >"$RUN/settings"
FRESH=
stop() {
  local rc=$?
  [ $rc != 0 ] || return 0
  echo "up.sh: failed; the logs are in $RUN/log:" >&2
  tail -n 3 "$RUN"/log/* >&2
  "$W/down.sh" >&2
  exit $rc
}
trap stop EXIT
within() { # within SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || fail "no $what in time"
    sleep 0.1
  done
  lap "$what"
}
nodes_ready() { [ "$(on_control_plane kubectl get nodes --no-headers | grep -cw Ready)" = "$NODES" ]; }

"$W/pki.sh"
if [ "$NODES" = 0 ]; then
  "$W/ctl.sh" up
else
  (
    flock 8 # another cluster may need the same
    client_image
    torch_image
  ) 8>"$IMG/lock" >"$RUN/log/images.log" 2>&1
  lap "images of milkweed and torch"
  "$W/net.sh"
  for i in $(seq "$NODES"); do start_node "$i"; done
  "$W/ctl.sh" up
  setsid ip netns exec "$NAME-cp" python3 "$W/dns.py" "$CPIP" "$CPIP:6443" "$PKI/ca.crt" "$PKI/admin.crt" "$PKI/admin.key" \
    >"$RUN/log/dns.log" 2>&1 </dev/null &
  disown
fi
lap "control plane"
if [ "$NODES" != 0 ]; then
  within 30 "kube-proxy's rights" on_control_plane kubectl create clusterrolebinding kube-proxy --clusterrole=system:node-proxier --user=system:kube-proxy
  within 120 "nodes" nodes_ready
  "$W/node.sh" gpus
fi
within 30 "default service account" on_control_plane kubectl -n default get serviceaccount default
[ "$NODES" = 0 ] || on_control_plane kubectl get nodes -o wide
