#!/bin/bash
# pki.sh : certificates, service-account key and kubeconfigs
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
mkdir -p "$PKI"
chmod 700 "$PKI"
cd "$PKI"
server=$CPIP
[ "$NODES" != 0 ] || server=127.0.0.1
q() { openssl "$@" >>"$RUN/log/openssl.log" 2>&1; }
key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
cert() { # cert NAME SUBJECT [ALTERNATIVE_NAMES]
  q req "${key[@]}" -keyout "$1.key" -out "$1.csr" -subj "$2"
  {
    echo "keyUsage=critical,digitalSignature,keyEncipherment"
    echo "extendedKeyUsage=serverAuth,clientAuth"
    [ -z "${3:-}" ] || echo "subjectAltName=$3"
  } >"$1.ext"
  q x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -out "$1.crt" -days 3650 -extfile "$1.ext"
}
kubeconfig() { # kubeconfig NAME, of the certificate of that name
  cat >"$RUN/$1.kubeconfig" <<E
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://$server:6443", certificate-authority-data: $(base64 -w0 <ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 <"$1.crt"), client-key-data: $(base64 -w0 <"$1.key")}}]
contexts: [{name: lab, context: {cluster: lab, user: $1}}]
current-context: lab
E
  chmod 600 "$RUN/$1.kubeconfig"
}
q req -x509 "${key[@]}" -keyout ca.key -out ca.crt -days 3650 -subj /CN=lab-ca -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
q genrsa -out sa.key 2048
k=kubernetes.default
cert apiserver /CN=kube-apiserver "DNS:kubernetes,DNS:$k,DNS:$k.svc,DNS:$k.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:$CPIP,IP:10.96.0.1"
cert kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
cert admin /O=system:masters/CN=admin
for n in controller-manager scheduler; do cert $n /CN=system:kube-$n; done
cert kube-proxy /CN=system:kube-proxy
for i in $(seq "$NODES"); do cert "n$i" "/O=system:nodes/CN=system:node:n$i" "IP:$(nodeip "$i"),IP:127.0.0.1,DNS:n$i"; done
for n in admin controller-manager scheduler kube-proxy $(seq -f n%g "$NODES"); do kubeconfig "$n"; done
