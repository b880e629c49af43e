#!/bin/bash
# place.sh inside [-n NAMESPACE] CMD...  runs CMD where pods and services have addresses and names, as in a pod of NAMESPACE
# place.sh outside CMD...                runs CMD where only the API server answers; what is sent to a pod is lost without a word
# Both in the current folder, with the files of this machine, a network and a host name of their own.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
usage() { sed -n '2,/^set/{/^#/s/^# //p}' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
place=$1 namespace=default
shift
if [ "$1" = -n ]; then
  [ $# -ge 3 ] || usage
  namespace=$2
  shift 2
fi
case $place in
  inside)
    name=client
    hosts="$INSIDE client"
    resolver="nameserver $CPIP"$'\n'"search $namespace.svc.cluster.local svc.cluster.local cluster.local"$'\n'"options ndots:5"
    ;;
  outside)
    name=laptop
    hosts="127.0.1.1 laptop"
    resolver="# nobody to ask"
    ;;
  *) usage ;;
esac
[ -e "/run/netns/$NAME-$place" ] || { echo "place.sh: no cluster runs: start one with up.sh" >&2; exit 1; }
mkdir -p "$RUN/place"
printf '127.0.0.1 localhost\n%s\n' "$hosts" >"$RUN/place/$place.hosts"
printf '%s\n' "$resolver" >"$RUN/place/$place.$namespace.resolver"
# shellcheck disable=SC2016
exec nsenter --net="/run/netns/$NAME-$place" unshare --mount --uts -- sh -c '
  hostname "$1" && mount --bind "$2" "$(readlink -f /etc/hosts)" && mount --bind "$3" "$(readlink -f /etc/resolv.conf)" && shift 3 && exec "$@"' \
  sh "$name" "$RUN/place/$place.hosts" "$RUN/place/$place.$namespace.resolver" "$@"
