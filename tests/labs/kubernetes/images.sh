# shellcheck shell=bash disable=SC2153
# The images, without a registry. prepare.sh makes them and unpacks them once, as containerd would, into $IMG/store; the nodes of a
# cluster get that by hard links, in less than a second. Sourced by prepare.sh and up.sh.
#   localhost/pause:1 localhost/busybox:1    localhost/python:3.11: Debian's
#   localhost/milkweed:test                  python with the engine and cryptography, and nothing of milkweed
#   localhost/milkweed-client:test           the same with milkweed and all that it needs; made by up.sh when the source has changed
#   localhost/milkweed-torch:test            milkweed:test with torch; made by up.sh when there is another one

RECIPE=1 # another number: all images are made again

images_key() { # what the images in the store were made from
  { echo "$RECIPE" && "$W/mkclient.py" requirements && stat -f -c %T "$LAB"; } | sha256sum | cut -c1-16
}

have_images() { [ "$(cat "$IMG/store/key" 2>/dev/null)" = "$(images_key)" ]; }

image() { # image NAME:TAG TREE [--base NAME] COMMAND...
  local name=${1%:*} reference=localhost/$1 tree=$2 base=()
  shift 2
  [ "$1" != --base ] || { base=(--base "$IMG/new/$2.json") && shift 2; }
  "$W/mkimage.py" "${base[@]}" "$tree" "$reference" "$IMG/new/$name.tar" "$@"
}

compile() { # compile TREE: in place, for Debian's Python, and whatever times the files will have
  local root=$IMG/new/python
  # shellcheck disable=SC2016
  unshare --mount sh -c '[ "$1" = "$2" ] || mount --bind "$1/usr/local" "$2/usr/local"
    chroot "$2" python3 -m compileall -q -f -j 2 --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.11 /usr/local/lib/python3.11 || true' \
    sh "$1" "$root"
}

wheels() { # wheels TREE REQUIREMENT...: installs wheels for Debian 12's Python, with whatever Python runs here
  local pip tree=$1 platforms
  shift
  pip=$(echo "$IMG"/new/python/usr/share/python-wheels/pip-*.whl)
  mapfile -t platforms < <(seq -f "--platform=manylinux_2_%g_$(uname -m)" 5 36)
  PYTHONDONTWRITEBYTECODE=1 python3 "$pip/pip" --disable-pip-version-check install -q --no-compile --only-binary=:all: --python-version=3.11 \
    --implementation=cp --abi=cp311 --abi=abi3 --abi=none --platform="linux_$(uname -m)" --platform="manylinux2014_$(uname -m)" \
    "${platforms[@]}" --target="$tree/usr/local/lib/python3.11/dist-packages" "$@"
}

pause_image() {
  mkdir -p "$IMG/new/pause/bin"
  cp "$ROOT/bin/busybox" "$IMG/new/pause/bin/"
  image pause:1 "$IMG/new/pause" /bin/busybox sleep infinity
}

busybox_image() {
  local t=$IMG/new/busybox a
  mkdir -p "$t"/{bin,dev,etc,proc,root,sys,tmp}
  cp "$ROOT/bin/busybox" "$t/bin/"
  for a in $("$t/bin/busybox" --list); do [ "$a" = busybox ] || ln -sf busybox "$t/bin/$a"; done
  image busybox:1 "$t" /bin/sh
}

python_image() {
  local t=$IMG/new/python
  tree bookworm "$t" python3,python3-venv,ca-certificates,fuse3
  rm -rf "$t"/{var/cache/apt,var/lib/apt/lists,usr/share/doc,usr/share/locale,usr/share/man}/*
  compile "$t"
  image python:3.11 "$t" /usr/bin/python3
}

milkweed_image() {
  local wanted
  mapfile -t wanted < <("$W/mkclient.py" requirements torchmonarch cryptography)
  wheels "$IMG/new/milkweed" "${wanted[@]}"
  compile "$IMG/new/milkweed"
  image milkweed:test "$IMG/new/milkweed" --base python /usr/bin/python3
}

needs_image() { # what a client needs; only a base
  local wanted
  mapfile -t wanted < <("$W/mkclient.py" requirements - torchmonarch cryptography)
  wheels "$IMG/new/needs" "${wanted[@]}"
  compile "$IMG/new/needs"
  image milkweed-needs:test "$IMG/new/needs" --base milkweed /usr/bin/python3
}

store() { # unpacks all images, as a node would
  local s=$IMG/new/store name
  mkdir -p "$s"
  cp "$IMG"/new/*.json "$s/"
  containerd_config "$IMG/new" "$s/root" "$IMG/new/state" "$(snapshotter_for "$IMG")" >"$IMG/new/containerd.toml"
  (
    use_runtime
    containerd -c "$IMG/new/containerd.toml" &
    trap 'kill $!; wait' EXIT
    until_up "$IMG/new/containerd.sock"
    for name in pause busybox python milkweed milkweed-needs; do
      ctr -a "$IMG/new/containerd.sock" -n k8s.io images import --snapshotter "$(snapshotter_for "$IMG")" "$IMG/new/$name.tar"
    done
  )
  images_key >"$s/key"
  rm -rf "$IMG/store"
  mv "$s" "$IMG/store"
}

get_images() { # puts the images where a node's containerd keeps them: get_images FOLDER
  cp -al "$IMG/store/root" "$1"
  find "$1" -name '*.db' -exec sh -c 'cp "$1" "$1.own" && mv "$1.own" "$1"' sh {} \;
}

client_image() { # the image with milkweed itself, where its source has changed since the last time
  local key t=$IMG/client.new
  key=$("$W/mkclient.py" digest)-$(cat "$IMG/store/key")
  [ "$(cat "$IMG/client/key" 2>/dev/null)" != "$key" ] || return 0
  rm -rf "$t"
  "$W/mkclient.py" install "$t/tree"
  if [ "$(python3 -c 'import sys; print(sys.version_info[:2])')" = "(3, 11)" ]; then
    python3 -m compileall -q -j 2 --invalidation-mode unchecked-hash "$t/tree" >/dev/null || true
  fi
  "$W/mkimage.py" --base "$IMG/store/milkweed-needs.json" "$t/tree" localhost/milkweed-client:test "$t/milkweed-client.tar" /usr/bin/python3
  rm -rf "$t/tree"
  echo "$key" >"$t/key"
  rm -rf "$IMG/client"
  mv "$t" "$IMG/client"
}

find_torch() { # the packages of the torch lab, where they are for the images' Python; else nothing
  local folder
  for folder in "${MILKWEED_TORCH:-/nowhere}" "$(dirname "$LAB")"/torch-[0-9]*; do
    folder=$folder/lib/python3.11/site-packages
    if [ -f "$folder/torch/version.py" ]; then echo "$folder" && return; fi
  done
}

stand_in() { # stand_in NAME FOLDER: installs a module that is only there
  mkdir "$2/$1-0.dist-info"
  printf 'Metadata-Version: 2.1\nName: %s\nVersion: 0\n' "$1" >"$2/$1-0.dist-info/METADATA"
  cp "$W/standins/$1.py" "$2/"
}

torch_image() { # the workers' image with torch, which takes gigabytes: as hard links, which a node's layer is made of by link_torch
  local key t=$IMG/torch.new found path=usr/local/lib/python3.11/dist-packages
  found=$(find_torch)
  key="$(cat "$IMG/store/key" "$W"/standins/* | sha256sum | cut -c1-16) $found $([ -z "$found" ] || stat -c '%i %Y' "$found/torch/version.py")"
  [ "$(cat "$IMG/torch/key" 2>/dev/null)" != "$key" ] || return 0
  rm -rf "$t"
  for tree in small tree; do
    mkdir -p "$t/$tree/opt/torch" "$t/$tree/$path"
    echo /opt/torch >"$t/$tree/$path/lab-torch.pth"
    stand_in transformers "$t/$tree/opt/torch"
  done
  stand_in torch "$t/small/opt/torch"
  "$W/mkimage.py" --base "$IMG/store/milkweed.json" "$t/small" localhost/milkweed-torch:test "$t/milkweed-torch.tar" /usr/bin/python3
  if [ -n "$found" ] && cp -al "$found"/* "$t/tree/opt/torch/"; then
    rm -rf "$t/tree/opt/torch"/{pip,setuptools,_distutils_hack}*
  else
    rm -rf "$t/tree"
  fi
  rm -rf "$t/small"
  echo "$key" >"$t/key"
  rm -rf "$IMG/torch"
  mv "$t" "$IMG/torch"
}

link_torch() { # link_torch FOLDER: what lies where a node's containerd keeps the layer of torch_image is the real torch
  local layer
  [ -d "$IMG/torch/tree" ] || return 0
  for layer in "$1"/*.overlayfs/snapshots/*/fs/opt/torch/torch.py; do
    [ -e "$layer" ] || continue
    layer=${layer%/opt/*}
    rm -rf "$layer"
    ln -s "$IMG/torch/tree" "$layer"
  done
}
