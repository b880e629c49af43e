#!/bin/bash
# net.sh : the network namespaces k8s-cp (bridge and control plane), k8s-nI (one per node), k8s-inside, k8s-outside (for clients),
# and a cable to this machine
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
sysctls() { ip netns exec "$1" sysctl -qw "${@:2}"; }
plug() { # plug NAMESPACE PORT: a new network namespace with a cable to a port of the bridge
  ip netns add "$1"
  ip -n "$1" link set lo up
  ip link add eth0 netns "$1" type veth peer name "$2" netns k8s-cp
  ip -n k8s-cp link set "$2" master br0 up
}
ip netns add k8s-cp
ip -n k8s-cp link set lo up
ip -n k8s-cp link add br0 type bridge
ip -n k8s-cp addr add "$CPIP/24" dev br0
ip -n k8s-cp link set br0 up
sysctls k8s-cp net.ipv4.ip_forward=1
sysctls k8s-cp net.bridge.bridge-nf-call-iptables=0 2>/dev/null || true # only where the kernel has it
ip link add k8s-h type veth peer name veth-h netns k8s-cp
ip addr add "$HOSTIP/24" dev k8s-h
ip link set k8s-h up
ip -n k8s-cp link set veth-h master br0 up
for i in $(seq "$NODES"); do
  plug "k8s-n$i" "veth-n$i"
  ip -n "k8s-n$i" addr add "$(nodeip "$i")/24" dev eth0
  ip -n "k8s-n$i" link set eth0 up
  ip -n "k8s-n$i" route add default via "$CPIP"
  sysctls "k8s-n$i" net.ipv4.ip_forward=1
  ip -n k8s-cp route add "10.244.$i.0/24" via "$(nodeip "$i")"
  for j in $(seq $((i - 1))); do
    ip -n "k8s-n$i" route add "10.244.$j.0/24" via "$(nodeip "$j")"
    ip -n "k8s-n$j" route add "10.244.$i.0/24" via "$(nodeip "$i")"
  done
done
# from this machine, and from inside: pod addresses directly, service addresses through node 1's kube-proxy
ip route add "$POD_CIDR" via "$CPIP" dev k8s-h
ip route add "$SVC_CIDR" via "$(nodeip 1)" dev k8s-h
plug k8s-inside veth-inside
ip -n k8s-inside addr add "$INSIDE/24" dev eth0
ip -n k8s-inside link set eth0 up
ip -n k8s-inside route add default via "$CPIP"
ip -n k8s-inside route add "$SVC_CIDR" via "$(nodeip 1)"
# from outside: the API server; the rest goes into a cable that nobody listens to
plug k8s-outside veth-outside
ip -n k8s-outside addr add "$OUTSIDE/32" dev eth0
ip -n k8s-outside link set eth0 up
ip -n k8s-outside route add "$CPIP/32" dev eth0
ip -n k8s-outside link add nowhere arp off type veth peer name nobody
ip -n k8s-outside link set nobody up
ip -n k8s-outside link set nowhere up
ip -n k8s-outside route add default dev nowhere src "$OUTSIDE"
