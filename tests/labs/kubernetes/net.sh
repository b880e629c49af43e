#!/bin/bash
# net.sh : the network namespaces k8s-cp (bridge and control plane) and k8s-nI (one per node), and a cable to this machine
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
ip netns add k8s-cp
ip -n k8s-cp link set lo up
ip -n k8s-cp link add br0 type bridge
ip -n k8s-cp addr add "$CPIP/24" dev br0
ip -n k8s-cp link set br0 up
ip netns exec k8s-cp sysctl -qw net.ipv4.ip_forward=1
ip netns exec k8s-cp sysctl -qw net.bridge.bridge-nf-call-iptables=0 2>/dev/null || true # only where the kernel has it
ip link add k8s-h type veth peer name veth-h netns k8s-cp
ip addr add "$HOSTIP/24" dev k8s-h
ip link set k8s-h up
ip -n k8s-cp link set veth-h master br0 up
for i in $(seq "$NODES"); do
  ip netns add "k8s-n$i"
  ip -n "k8s-n$i" link set lo up
  ip link add eth0 netns "k8s-n$i" type veth peer name "veth-n$i" netns k8s-cp
  ip -n k8s-cp link set "veth-n$i" master br0 up
  ip -n "k8s-n$i" addr add "$(nodeip "$i")/24" dev eth0
  ip -n "k8s-n$i" link set eth0 up
  ip -n "k8s-n$i" route add default via "$CPIP"
  ip netns exec "k8s-n$i" sysctl -qw net.ipv4.ip_forward=1
  ip -n k8s-cp route add "10.244.$i.0/24" via "$(nodeip "$i")"
  for j in $(seq $((i - 1))); do
    ip -n "k8s-n$i" route add "10.244.$j.0/24" via "$(nodeip "$j")"
    ip -n "k8s-n$j" route add "10.244.$i.0/24" via "$(nodeip "$i")"
  done
done
# from this machine: pod addresses directly, service addresses through node 1's kube-proxy
ip route add "$POD_CIDR" via "$CPIP" dev k8s-h
ip route add "$SVC_CIDR" via "$(nodeip 1)" dev k8s-h
