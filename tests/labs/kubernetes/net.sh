#!/bin/bash
# net.sh : the network namespaces $NAME-cp (bridge and control plane), $NAME-nI (one per node), $NAME-inside, $NAME-outside (for
# clients), and a cable from this machine to the first cluster
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
sysctls() { ip netns exec "$1" sysctl -qw "${@:2}"; }
plug() { # plug NAMESPACE PORT: a new network namespace with a cable to a port of the bridge
  ip netns add "$1"
  ip -n "$1" link set lo up
  ip link add eth0 netns "$1" type veth peer name "$2" netns "$NAME-cp"
  ip -n "$NAME-cp" link set "$2" master br0 up
}
ip netns add "$NAME-cp"
ip -n "$NAME-cp" link set lo up
ip -n "$NAME-cp" link add br0 type bridge
ip -n "$NAME-cp" addr add "$CPIP/24" dev br0
ip -n "$NAME-cp" link set br0 up
sysctls "$NAME-cp" net.ipv4.ip_forward=1
sysctls "$NAME-cp" net.bridge.bridge-nf-call-iptables=0 2>/dev/null || true # only where the kernel has it
for i in $(seq "$NODES"); do
  plug "$NAME-n$i" "veth-n$i"
  ip -n "$NAME-n$i" addr add "$(nodeip "$i")/24" dev eth0
  ip -n "$NAME-n$i" link set eth0 up
  ip -n "$NAME-n$i" route add default via "$CPIP"
  sysctls "$NAME-n$i" net.ipv4.ip_forward=1
  ip -n "$NAME-cp" route add "10.244.$i.0/24" via "$(nodeip "$i")"
  for j in $(seq $((i - 1))); do
    ip -n "$NAME-n$i" route add "10.244.$j.0/24" via "$(nodeip "$j")"
    ip -n "$NAME-n$j" route add "10.244.$i.0/24" via "$(nodeip "$i")"
  done
done
# from this machine, and from inside: pod addresses directly, service addresses through node 1's kube-proxy
if [ "$NAME" = k8s ]; then
  ip link add k8s-h type veth peer name veth-h netns "$NAME-cp"
  ip addr add "$HOSTIP/24" dev k8s-h
  ip link set k8s-h up
  ip -n "$NAME-cp" link set veth-h master br0 up
  ip route add "$POD_CIDR" via "$CPIP" dev k8s-h
  ip route add "$SVC_CIDR" via "$(nodeip 1)" dev k8s-h
fi
plug "$NAME-inside" veth-inside
ip -n "$NAME-inside" addr add "$INSIDE/24" dev eth0
ip -n "$NAME-inside" link set eth0 up
ip -n "$NAME-inside" route add default via "$CPIP"
ip -n "$NAME-inside" route add "$SVC_CIDR" via "$(nodeip 1)"
# from outside: the API server; the rest goes into a cable that nobody listens to
plug "$NAME-outside" veth-outside
ip -n "$NAME-outside" addr add "$OUTSIDE/32" dev eth0
ip -n "$NAME-outside" link set eth0 up
ip -n "$NAME-outside" route add "$CPIP/32" dev eth0
ip -n "$NAME-outside" link add nowhere arp off type veth peer name nobody
ip -n "$NAME-outside" link set nobody up
ip -n "$NAME-outside" link set nowhere up
ip -n "$NAME-outside" route add default dev nowhere src "$OUTSIDE"
