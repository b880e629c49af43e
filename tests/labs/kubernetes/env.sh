# shellcheck shell=bash disable=SC2034
# Settings shared by the scripts in this folder. Everything they build or write lives below $LAB, except the network namespaces
# k8s-*, the network device k8s-h and the cgroups k8s-n*.
W=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
. "$W/../lib.sh"
LAB=${MILKWEED_LAB:-$HOME/.cache/milkweed-lab}/kubernetes
RUN=$LAB/run
PKI=$RUN/pki
BIN=$LAB/bin   # Kubernetes and etcd
ROOT=$LAB/root # containerd, runc, CNI plugins and nft, unpacked from Debian packages
IMG=$LAB/img
NODES=${NODES:-1}
CPIP=10.250.0.1     # control plane, in network namespace k8s-cp; also the DNS server
HOSTIP=10.250.0.254 # this machine's end of the veth pair
SVC_CIDR=10.96.0.0/16
POD_CIDR=10.244.0.0/16
PROGRAMS="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl"
export KUBECONFIG=$RUN/admin.kubeconfig
export KUBECACHEDIR=$RUN/kubecache
export PATH=$BIN:$PATH

nodeip() { echo "10.250.0.$((10 + $1))"; }

pid_of() { # pid_of PROGRAM: of the control plane, where it runs
  local p
  p=$(cat "$RUN/$1.pid" 2>/dev/null) && [ "$(readlink "/proc/$p/exe")" = "$(readlink -f "$BIN/$1")" ] && echo "$p"
}

start_node() { # boots node I in its own namespaces
  ip -n k8s-cp link set "veth-n$1" up
  setsid ip netns exec "k8s-n$1" unshare --mount --pid --fork --uts --ipc --mount-proc --kill-child=SIGKILL \
    "$W/node-init.sh" "$1" >>"$RUN/log/n$1-init.log" 2>&1 </dev/null &
  disown
}
