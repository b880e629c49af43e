#!/bin/bash
# Gets what up.sh needs, once: the Kubernetes and etcd programs (built from the Go module registry, see build/go.mod; skipped where
# they are in $BIN already, or in KUBEBUILDER_ASSETS), Helm (likewise, from build/helm/go.mod; tests go without it) and, as root on Debian, containerd, runc and CNI plugins (unpacked, not installed) and the images.
set -euo pipefail
LAB_NAME=kubernetes
. "$(dirname "$(readlink -f "$0")")/env.sh"
. "$W/../steps.sh"
. "$W/images.sh"

modules() { # go writes into a copy: the project's folder stays as it is
  rm -rf "$LAB/build"
  cp -r "$W/build" "$LAB/build"
  cd "$LAB/build"
  local packages=(./etcd)
  for p in $PROGRAMS; do packages+=("k8s.io/kubernetes/cmd/$p"); done
  nice -n 19 go list -deps "${packages[@]}" >/dev/null
}
build() { # build PROGRAM
  local package=k8s.io/kubernetes/cmd/$1 version=k8s.io/component-base/version v
  [ "$1" != etcd ] || package=./etcd
  cd "$LAB/build"
  v=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
  nice -n 19 go build -trimpath -o "$BIN/$1.new" \
    -ldflags "-s -w -X $version.gitVersion=$v -X $version.gitMajor=1 -X $version.gitMinor=$(cut -d. -f2 <<<"$v")" "$package"
  mv "$BIN/$1.new" "$BIN/$1"
}
build_helm() { # from the modules that Kubernetes has, as far as it can
  rm -rf "$LAB/helm"
  cp -r "$W/build/helm" "$LAB/helm"
  cd "$LAB/helm"
  nice -n 19 go build -trimpath -o "$BIN/helm.new" -ldflags "-s -w" helm.sh/helm/v3/cmd/helm
  "$BIN/helm.new" version
  mv "$BIN/helm.new" "$BIN/helm"
  cp "$W/build/helm/go.mod" "$BIN/helm.mod"
}
clean_build() { # gigabytes that only another version would need
  cd "$LAB"
  go clean -cache -modcache
  rm -rf "$LAB/build" "$LAB/helm" "$LAB/go"
}
runtime() {
  rm -rf "$ROOT"
  unpack "$ROOT.new" containerd runc libseccomp2 containernetworking-plugins busybox-static \
    nftables libnftables1 libnftnl11 libmnl0 libxtables12 libjansson4 libedit2 libbsd0 libmd0 libgmp10
  mv "$ROOT.new" "$ROOT"
}

begin
mkdir -p "$BIN" "$IMG"

# the programs: all that a control plane without nodes needs
if [ -f "$BIN/go.mod" ] && ! cmp -s "$BIN/go.mod" "$W/build/go.mod"; then # built here, from another version
  for p in $PROGRAMS etcd; do rm -f "$BIN/$p"; done
fi
for p in $PROGRAMS etcd; do # a developer may have some of them, where other tools look for them, too
  if [ ! -x "$BIN/$p" ] && [ -x "${KUBEBUILDER_ASSETS:-/nowhere}/$p" ]; then ln -sf "$KUBEBUILDER_ASSETS/$p" "$BIN/$p"; fi
done
missing=
for p in $PROGRAMS etcd; do [ -x "$BIN/$p" ] || missing="$missing $p"; done
minor=$(go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p') || true
export GOTOOLCHAIN=auto GOFLAGS="-mod=mod -p=2 -buildvcs=false" GOMAXPROCS=2 CGO_ENABLED=0 GOPATH=$LAB/go GOCACHE=$LAB/go/cache
if [ -n "$missing" ]; then
  [ "${minor:-0}" -ge 21 ] || cannot "no Go 1.21 or newer to build Kubernetes with" \
    "Install one (it fetches the version that build/go.mod names), or put $PROGRAMS and etcd into $BIN"
  step "fetch the Go modules" modules
  for p in $missing; do step "build $p" build "$p"; done
  cp "$W/build/go.mod" "$BIN/go.mod"
else
  have "programs"
fi
if [ -x "$BIN/helm" ] && cmp -s "$BIN/helm.mod" "$W/build/helm/go.mod"; then
  have "Helm"
elif [ "${minor:-0}" -lt 21 ]; then
  say "not here: no Go 1.21 or newer to build Helm with. Tests of the chart with Helm itself are skipped"
else # what fails here fails nothing else; not in a condition, or bash would go on after errors
  set +e
  (set -e; step "build Helm" build_helm)
  rc=$?
  set -e
  [ "$rc" = 0 ] || say "not here: Helm could not be built. Tests of the chart with Helm itself are skipped"
fi
if [ -d "$LAB/go" ]; then step "remove the Go modules" clean_build; fi
for c in openssl curl python3; do
  command -v "$c" >/dev/null || cannot "no $c" "Install it"
done

# what nodes need
is_debian || { say "control plane only (NODES=0): nodes are made from Debian packages, and this is not Debian"; exit 0; }
if ! is_root || ! may_unshare; then
  say "control plane only (NODES=0): nodes need a root that may make namespaces. Run it as root"
  exit 0
fi
if [ -x "$ROOT/usr/bin/containerd" ]; then have "containerd, runc, CNI plugins"; else step "unpack containerd, runc, CNI plugins" runtime; fi
if have_images; then
  have "images"
else
  rm -rf "$IMG/new" "$IMG"/{pause,busybox,python}.tar "$IMG/tree"
  mkdir -p "$IMG/new"
  for i in pause busybox python milkweed needs; do step "make image $i" "${i}_image"; done
  step "unpack the images" store
  rm -rf "$IMG/new"
fi
say "ready in $LAB"
