#!/bin/bash
# node-init.sh head|nI : becomes that host. Runs in its own network, host name and mount namespace; a node also in its own
# pid namespace, below its PID 1. All else plays the shared file system.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
host=$1
[ "$(ip netns identify)" = "$NAME-$host" ] || { echo "node-init.sh: only up.sh and node.sh run this" >&2; exit 2; }
hostname "$host"
mount --bind "$RUN/hosts" /etc/hosts
mount -t sysfs sysfs /sys           # this network's devices ...
mount -t tmpfs tmpfs /sys/fs/cgroup # ... and an empty cgroup v1 root: slurmd 22.05 insists on one, nothing uses it
mount -t tmpfs -o size=2g tmpfs /dev/shm
private_tmp "$host"
cd /
export LANG=C.UTF-8
enter=()
if is_24; then
  enter_trixie
  enter=(chroot "$TRIXIE_ROOT")
fi
[ "$host" != head ] || exec "${enter[@]}" sleep infinity
mkdir -p "$RUN/spool/$host"
exec "${enter[@]}" slurmd -D -N "$host" -f "$SLURM_CONF"
