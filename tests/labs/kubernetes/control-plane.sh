#!/bin/bash
# control-plane.sh [PREFIX...] : starts the control plane, each program after PREFIX ("ip netns exec k8s-cp"); on 127.0.0.1 without
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
if [ $# -gt 0 ]; then bind=$CPIP; else bind=127.0.0.1; fi
prefix=("${@:-env}")
start() { # start PROGRAM ARGS...
  setsid "${prefix[@]}" "$@" >"$RUN/log/$1.log" 2>&1 </dev/null &
  echo $! >"$RUN/$1.pid"
  disown
}
ready() {
  [ "$("${prefix[@]}" curl -s --noproxy '*' --cacert "$PKI/ca.crt" --cert "$PKI/admin.crt" --key "$PKI/admin.key" \
    "https://$bind:6443/readyz")" = ok ]
}
mkdir -p "$RUN/cp"
start etcd --name=lab --data-dir="$RUN/cp/etcd" --unsafe-no-fsync \
  --listen-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380
# shellcheck disable=SC2086
start kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address="$bind" --secure-port=6443 --advertise-address="$CPIP" \
  --service-cluster-ip-range="$SVC_CIDR" --allow-privileged=true \
  --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" --client-ca-file="$PKI/ca.crt" \
  --service-account-issuer=https://kubernetes.default.svc \
  --service-account-signing-key-file="$PKI/sa.key" --service-account-key-file="$PKI/sa.key" \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --kubelet-client-certificate="$PKI/kubelet-client.crt" --kubelet-client-key="$PKI/kubelet-client.key" \
  --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-preferred-address-types=InternalIP \
  --v="${APISERVER_V:-1}" ${APISERVER_ARGS:-}
end=$((SECONDS + 90))
until ready; do
  sleep 0.1
  for p in etcd kube-apiserver; do
    if ! kill -0 "$(cat "$RUN/$p.pid")" || [ $SECONDS -ge $end ]; then
      echo "control-plane.sh: $p is not ready; its log:" >&2
      tail -n 20 "$RUN/log/$p.log" >&2
      exit 1
    fi
  done
done
start kube-controller-manager --kubeconfig="$RUN/controller-manager.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false \
  --use-service-account-credentials --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt" \
  --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" \
  --flex-volume-plugin-dir="$RUN/cp/flex" --node-monitor-grace-period="${NODE_GRACE:-40s}" \
  --kube-api-qps=200 --kube-api-burst=400 --v=1
start kube-scheduler --kubeconfig="$RUN/scheduler.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false --v=1
