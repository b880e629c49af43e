# shellcheck shell=bash disable=SC2034
# Settings shared by the scripts in this folder. Everything they build or write lives below $LAB, except the network namespaces
# $NAME-*, the network device k8s-h and the cgroups $NAME-n*.
W=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
. "$W/../lib.sh"
LAB=${MILKWEED_LAB:-$HOME/.cache/milkweed-lab}/kubernetes
NAME=${KUBERNETES_LAB:-k8s} # KUBERNETES_LAB=other: a second cluster beside the first; this machine has no cable to it
RUN=$LAB/run
[ "$NAME" = k8s ] || RUN=$LAB/run-$NAME
case $NAME in *[!a-z0-9]*) echo "KUBERNETES_LAB: only a-z and 0-9" >&2; exit 2 ;; esac
PKI=$RUN/pki
BIN=$LAB/bin   # Kubernetes and etcd
ROOT=$LAB/root # containerd, runc, CNI plugins and nft, unpacked from Debian packages
IMG=$LAB/img   # the images: as files, and unpacked in store/
NODES=${NODES:-1}
NODE_CPUS=${NODE_CPUS:-128} NODE_MEMORY_GI=${NODE_MEMORY_GI:-1024} # of each node, as pods are told; it is only a number
CPIP=10.250.0.1     # control plane, in network namespace $NAME-cp; also the DNS server
HOSTIP=10.250.0.254 # this machine's end of the cable to the first cluster
INSIDE=10.250.0.253 # the place inside, in network namespace $NAME-inside
OUTSIDE=10.250.0.252
SVC_CIDR=10.96.0.0/16
POD_CIDR=10.244.0.0/16
PROGRAMS="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl"
KNOBS="NODES NODE_CPUS NODE_MEMORY_GI GPUS NODE_GRACE NODE_LEASE EVICT_AFTER APISERVER_ARGS APISERVER_V KUBELET_V SNAPSHOTTER"
# A cluster keeps the settings it was started with.
# shellcheck disable=SC1091
[ -n "${FRESH:-}" ] || [ ! -f "$RUN/settings" ] || . "$RUN/settings"
export KUBECONFIG=$RUN/admin.kubeconfig
export KUBECACHEDIR=$RUN/kubecache
export PATH=$BIN:$PATH

nodeip() { echo "10.250.0.$((10 + $1))"; }

on_control_plane() { # on_control_plane CMD...: runs CMD where the control plane is
  if [ -e "/run/netns/$NAME-cp" ]; then nsenter --net="/run/netns/$NAME-cp" "$@"; else "$@"; fi
}

pid_of() { # pid_of PROGRAM: of the control plane, where it runs
  local p
  p=$(cat "$RUN/$1.pid" 2>/dev/null) && [ "$(readlink "/proc/$p/exe")" = "$(readlink -f "$BIN/$1")" ] && echo "$p"
}

start_node() { # boots node I in its own namespaces
  ip -n "$NAME-cp" link set "veth-n$1" up
  setsid ip netns exec "$NAME-n$1" unshare --mount --pid --fork --uts --ipc --mount-proc --kill-child=SIGKILL \
    "$W/node-init.sh" "$1" >>"$RUN/log/n$1-init.log" 2>&1 </dev/null &
  disown
}

snapshotter_for() { # snapshotter_for FOLDER: overlays do not stack
  if [ "$(stat -f -c %T "$1")" = overlayfs ]; then echo native; else echo "${SNAPSHOTTER:-overlayfs}"; fi
}

containerd_config() { # containerd_config FOLDER ROOT STATE SNAPSHOTTER
  cat <<E2
version = 2
root = "$2"
state = "$3"
[grpc]
  address = "$1/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$1/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  restrict_oom_score_adj = true # root may lack CAP_SYS_RESOURCE
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$ROOT/usr/lib/cni"
    conf_dir = "$1/cni-conf"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$4"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "$ROOT/usr/sbin/runc"
        SystemdCgroup = false
E2
}

use_runtime() { # puts containerd and what belongs to it on PATH
  export PATH=$ROOT/usr/bin:$ROOT/usr/sbin:$PATH
  LD_LIBRARY_PATH=$(echo "$ROOT"/usr/lib/*-linux-gnu)
  export LD_LIBRARY_PATH
}

until_up() { # until_up SOCKET: waits for containerd
  for _ in $(seq 300); do
    ! ctr -a "$1" version >/dev/null 2>&1 || return 0
    sleep 0.1
  done
  echo "containerd does not answer" >&2
  return 1
}
