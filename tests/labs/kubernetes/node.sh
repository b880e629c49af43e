#!/bin/bash
# node.sh exec I CMD...   runs CMD on node I
# node.sh pid I           the pid of node I's init, seen from this machine
# node.sh kill I          kills every process on node I, its pods too
# node.sh poweroff I      cuts the cable first, then kills (its peers see silence)
# node.sh cut I | mend I  cuts the cable only | heals it
# node.sh start I         boots node I again
# node.sh gpus            gives every node $GPUS GPUs, which are only a number
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
usage() { sed -n '2,/^set/{/^#/s/^# //p}' "$0" >&2; exit 2; }
if [ "${1:-}" = gpus ]; then
  patch=
  for list in capacity allocatable; do
    patch="$patch{\"op\": \"add\", \"path\": \"/status/$list/nvidia.com~1gpu\", \"value\": \"${GPUS:-8}\"},"
  done
  [ "${GPUS:-8}" = 0 ] || for i in $(seq "$NODES"); do
    on_control_plane kubectl patch node "n$i" --subresource=status --type=json -o name -p "[${patch%,}]"
  done
  exit
fi
[ $# -ge 2 ] || usage
command=$1 i=$2 ns=$NAME-n$2
shift 2
[ -e "/run/netns/$ns" ] || { echo "node.sh: there is no node n$i" >&2; exit 1; }
case $command in
  exec)
    init=$(init_in "$ns")
    exec nsenter -t "$init" --uts --mount --net --pid --ipc -- "$@"
    ;;
  pid) init_in "$ns" ;;
  cut) ip -n "$NAME-cp" link set "veth-n$i" down ;;
  mend) ip -n "$NAME-cp" link set "veth-n$i" up ;;
  kill) kill -9 "$(init_in "$ns")" ;;
  poweroff)
    init=$(init_in "$ns")
    ip -n "$NAME-cp" link set "veth-n$i" down
    kill -9 "$init"
    ;;
  start)
    ! init_in "$ns" >/dev/null 2>&1 || { echo "node.sh: node n$i runs already" >&2; exit 1; }
    start_node "$i"
    ;;
  *) usage ;;
esac
