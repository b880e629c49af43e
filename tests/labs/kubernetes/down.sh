#!/bin/bash
# down.sh : ends what up.sh started and removes its namespaces, routes and cgroups; the logs stay in $RUN/log. Safe to repeat.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
pids=
for p in kube-scheduler kube-controller-manager kube-apiserver etcd; do
  if pid=$(pid_of "$p"); then
    kill -9 "$pid"
    pids="$pids $pid"
  fi
done
for pid in $pids; do # until it is gone, or nothing but a zombie: then its ports are free
  while grep -q $'^State:\t[^Z]' "/proc/$pid/status" 2>/dev/null; do sleep 0.05; done
done
if is_root; then
  end_namespaces "$NAME" # with a node's PID 1 go its pods
  [ "$NAME" != k8s ] || ip link del k8s-h 2>/dev/null || true # and the routes with it
  for c in "/sys/fs/cgroup/$NAME-n"* /sys/fs/cgroup/*/"$NAME-n"*; do
    for _ in $(seq 100); do
      [ -d "$c" ] || break
      find "$c" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.05
    done
  done
  # mount points of nodes, where empty; what is removed here would vanish from under the nodes of another cluster
  compgen -G '/run/netns/*-cp' >/dev/null || rmdir /var/lib/kubelet /run/containerd /var/lib/cni 2>/dev/null || true
fi
if [ -d "$RUN" ]; then find "$RUN" -mindepth 1 -maxdepth 1 ! -name log -exec rm -rf {} +; fi
echo down
