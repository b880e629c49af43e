#!/bin/bash
# node-init.sh I : PID 1 of node I, in its own network, mount, pid, host name and ipc namespaces: containerd, kubelet, kube-proxy.
# What a node writes outside $RUN/nI is hidden in this mount namespace.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
. "$W/images.sh"
[ $$ = 1 ] || { echo "node-init.sh: only up.sh and node.sh run this" >&2; exit 2; }
i=$1 N=$RUN/n$1
hostname "n$i"
mount --make-rprivate /
mount --make-rshared /
rm -rf "$N/ctr-state" # a reboot would
mkdir -p "$N"/{varlog,kubelet,cni-lib,cni-conf,ctr-state,sysctl}
mkdir -p /var/lib/kubelet /run/containerd /var/lib/cni /run/netns
mount --bind "$N/varlog" /var/log
mount --bind "$N/kubelet" /var/lib/kubelet
mount --bind "$N/cni-lib" /var/lib/cni
mount -t tmpfs tmpfs /run/containerd
mount -t tmpfs tmpfs /run/netns

# the kubelet insists on these kernel settings and would write them for the whole machine: show it the values it wants
for kv in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  f=$N/sysctl/$(basename "${kv%=*}")
  echo "${kv#*=}" >"$f"
  mount --bind "$f" "/proc/sys/${kv%=*}"
done
# Its CPUs and its memory are only numbers, as its GPUs are: pods of any size find room, and share what the machine has. The
# kubelet counts folders, and takes what their names mean for numbers of CPUs: cpu0, cpu00 and cpu000 are three, and all the first.
real=(/sys/devices/system/cpu/cpu[0-9]*)
for c in $(seq 0 $((NODE_CPUS - 1))); do
  id=${real[c % ${#real[@]}]##*/cpu}
  t=$N/cpus/node0/cpu$(printf '%0*d' $((c / ${#real[@]} + ${#id})) "$id")/topology
  mkdir -p "$t"
  echo "$c" >"$t/core_id"
  echo 0 >"$t/physical_package_id"
done
sed "s/^MemTotal:.*/MemTotal: $((NODE_MEMORY_GI << 20)) kB/" /proc/meminfo >"$N/meminfo"
sed 's/^/Node 0 /' "$N/meminfo" >"$N/cpus/node0/meminfo"
mount --bind "$N/meminfo" /proc/meminfo
[ ! -d /sys/devices/system/node ] || mount --bind "$N/cpus" /sys/devices/system/node
echo "nameserver $CPIP" >"$N/resolv.conf"
mount --bind "$N/resolv.conf" "$(readlink -f /etc/resolv.conf)"

# cgroups: "ip netns exec" gave this node a fresh /sys; mount the hierarchies that the machine uses
if grep -q '^[0-9]*:\(.*,\)\?memory[,:]' /proc/self/cgroup; then # version 1
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  while IFS=: read -r _ controllers _; do
    case ,$controllers, in
      *,cpu,* | *,cpuacct,* | *,cpuset,* | *,memory,* | *,devices,* | *,freezer,* | *,blkio,* | *,pids,* | ,name=systemd,) ;;
      *) continue ;;
    esac
    h=/sys/fs/cgroup/${controllers#name=}
    mkdir "$h"
    mount -t cgroup -o "${controllers/#name=/none,name=}" cgroup "$h"
    mkdir -p "$h/$NAME-n$i"
    for c in ${controllers//,/ }; do
      c=/sys/fs/cgroup/${c#name=}
      [ -e "$c" ] || ln -s "$h" "$c"
    done
  done </proc/self/cgroup
  for f in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$f" >"/sys/fs/cgroup/cpuset/$NAME-n$i/$f"; done
else # version 2
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  sed 's/[^ ]\+/+&/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
  mkdir -p "/sys/fs/cgroup/$NAME-n$i"
fi

snapshotter=$(snapshotter_for "$N")
cat >"$N/cni-conf/10-bridge.conflist" <<E
{"cniVersion": "0.4.0", "name": "podnet", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.$i.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/var/lib/cni/networks"}}]}
E
containerd_config "$N" "$N/ctr-root" "$N/ctr-state" "$snapshotter" >"$N/containerd.toml"
cat >"$N/kubelet.yaml" <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$N/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$NAME-n$i
failCgroupV1: false
failSwapOn: false
clusterDNS: [$CPIP]
clusterDomain: cluster.local
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/n$i.crt
tlsPrivateKeyFile: $PKI/n$i.key
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 110
nodeLeaseDurationSeconds: ${NODE_LEASE:-40}
volumePluginDir: $N/volume-plugins
resolvConf: /etc/resolv.conf
E

use_runtime
[ -e "$N/ctr-root" ] || get_images "$N/ctr-root"
containerd -c "$N/containerd.toml" >>"$RUN/log/n$i-containerd.log" 2>&1 &
until_up "$N/containerd.sock"
if [ ! -e "$N/images" ]; then
  for image in "$IMG/client"/*.tar "$IMG/torch"/*.tar "$IMG"/*.tar; do
    [ ! -e "$image" ] || ctr -a "$N/containerd.sock" -n k8s.io images import --snapshotter "$snapshotter" "$image"
  done
  link_torch "$N/ctr-root"
  touch "$N/images"
fi
kubelet --config="$N/kubelet.yaml" --kubeconfig="$RUN/n$i.kubeconfig" --hostname-override="n$i" --node-ip="$(nodeip "$i")" \
  --v="${KUBELET_V:-2}" >>"$RUN/log/n$i-kubelet.log" 2>&1 &
kube-proxy --kubeconfig="$RUN/kube-proxy.kubeconfig" --proxy-mode=nftables --cluster-cidr="$POD_CIDR" --hostname-override="n$i" \
  --bind-address="$(nodeip "$i")" --metrics-bind-address=127.0.0.1:10249 --healthz-bind-address=127.0.0.1:10256 \
  --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0s --conntrack-tcp-timeout-close-wait=0s \
  --v=1 >>"$RUN/log/n$i-kube-proxy.log" 2>&1 &
while :; do wait -n || sleep 1; done
