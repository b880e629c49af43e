#!/bin/bash
# node.sh exec I CMD...   runs CMD on node I
# node.sh pid I           the pid of node I's init, seen from this machine
# node.sh kill I          kills every process on node I (its peers see the connections close)
# node.sh poweroff I      cuts the cable first, then kills (its peers see silence)
# node.sh cut I | mend I  cuts the cable only | heals it
# node.sh start I         boots node I again
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
usage() { sed -n '2,/^set/{/^#/s/^# //p}' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
command=$1 i=$2
shift 2
[ -e "/run/netns/$NAME-n$i" ] || { echo "node.sh: there is no node n$i" >&2; exit 1; }
case $command in
  exec)
    init=$(init_of "$i")
    enter=()
    ! is_24 || enter=(chroot "$TRIXIE_ROOT")
    exec nsenter -t "$init" --uts --mount --net --pid -- "${enter[@]}" "$@"
    ;;
  pid) init_of "$i" ;;
  cut) ip -n "$NAME-head" link set "v$i" down ;;
  mend) ip -n "$NAME-head" link set "v$i" up ;;
  kill) kill -9 "$(init_of "$i")" ;;
  poweroff)
    init=$(init_of "$i")
    ip -n "$NAME-head" link set "v$i" down
    kill -9 "$init"
    ;;
  start)
    ! init_of "$i" >/dev/null 2>&1 || { echo "node.sh: node n$i runs already" >&2; exit 1; }
    start_node "$i"
    ;;
  *) usage ;;
esac
