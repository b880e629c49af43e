#!/bin/bash
# ctl.sh up                          starts the control plane of a new cluster; up.sh does
# ctl.sh stop | start | restart [P]  ends a program of the control plane, as a crash would | starts it again | both
# ctl.sh freeze | thaw [P]           makes it silent: connections to it hang | lets it go on
# P: kube-apiserver (without P), kube-scheduler, kube-controller-manager, etcd. Pods go on without any of them.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
usage() { sed -n '2,/^set/{/^#/s/^# //p}' "$0" >&2; exit 2; }
fail() { echo "ctl.sh: $1" >&2; exit 1; }
if [ $# -lt 1 ] || [ $# -gt 2 ]; then usage; fi
program=${2:-kube-apiserver}
if [ -e "/run/netns/$NAME-cp" ]; then
  prefix=(ip netns exec "$NAME-cp") bind=$CPIP
else
  prefix=(env) bind=127.0.0.1
fi

start() { # start PROGRAM
  local a
  if pid_of "$1" >/dev/null; then fail "$1 runs already"; fi
  case $1 in
    etcd)
      a=(--name=lab --data-dir="$RUN/cp/etcd" --unsafe-no-fsync
        --listen-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380)
      ;;
    kube-apiserver)
      # shellcheck disable=SC2206,SC2054
      a=(--etcd-servers=http://127.0.0.1:2379 --bind-address="$bind" --secure-port=6443 --advertise-address="$CPIP"
        --service-cluster-ip-range="$SVC_CIDR" --allow-privileged=true
        --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" --client-ca-file="$PKI/ca.crt"
        --service-account-issuer=https://kubernetes.default.svc
        --service-account-signing-key-file="$PKI/sa.key" --service-account-key-file="$PKI/sa.key"
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction
        --default-not-ready-toleration-seconds="${EVICT_AFTER:-300}" --default-unreachable-toleration-seconds="${EVICT_AFTER:-300}"
        --kubelet-client-certificate="$PKI/kubelet-client.crt" --kubelet-client-key="$PKI/kubelet-client.key"
        --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-preferred-address-types=InternalIP
        --v="${APISERVER_V:-1}" ${APISERVER_ARGS:-})
      ;;
    kube-controller-manager)
      a=(--kubeconfig="$RUN/controller-manager.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false
        --use-service-account-credentials --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt"
        --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key"
        --flex-volume-plugin-dir="$RUN/cp/flex" --node-monitor-grace-period="${NODE_GRACE:-40s}" --node-monitor-period=1s
        --kube-api-qps=200 --kube-api-burst=400 --v=1)
      ;;
    kube-scheduler) a=(--kubeconfig="$RUN/scheduler.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false --v=1) ;;
    *) usage ;;
  esac
  setsid "${prefix[@]}" "$1" "${a[@]}" >>"$RUN/log/$1.log" 2>&1 </dev/null &
  echo $! >"$RUN/$1.pid"
  disown
}

ready() {
  [ "$("${prefix[@]}" curl -s --max-time 5 --noproxy '*' --cacert "$PKI/ca.crt" --cert "$PKI/admin.crt" --key "$PKI/admin.key" \
    "https://$bind:6443/readyz")" = ok ]
}

until_ready() {
  local p end=$((SECONDS + 90))
  until ready; do
    sleep 0.1
    for p in etcd kube-apiserver; do
      if ! kill -0 "$(cat "$RUN/$p.pid")" || [ $SECONDS -ge $end ]; then
        tail -n 20 "$RUN/log/$p.log" >&2
        fail "$p is not ready; the end of its log is above"
      fi
    done
  done
}

send() { # send SIGNAL
  local p
  p=$(pid_of "$program") || fail "$program does not run"
  kill -"$1" "$p"
}

stop() {
  local p
  p=$(pid_of "$program") || fail "$program does not run"
  kill -KILL "$p"
  while grep -q $'^State:\t[^Z]' "/proc/$p/status" 2>/dev/null; do sleep 0.02; done # then its ports are free
}

begin() {
  start "$program"
  case $program in etcd | kube-apiserver) until_ready ;; esac
}

case $1 in
  up)
    mkdir -p "$RUN/cp"
    start etcd
    start kube-apiserver
    until_ready
    start kube-controller-manager
    start kube-scheduler
    ;;
  stop) stop ;;
  start) begin ;;
  restart) stop && begin ;;
  freeze) send STOP ;;
  thaw) send CONT ;;
  *) usage ;;
esac
