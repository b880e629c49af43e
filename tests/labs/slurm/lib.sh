# shellcheck shell=bash
# Shared by the scripts in this folder. Everything they write lives below $LAB, except the network namespaces $NAME-*.
S=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
. "$S/../lib.sh"
LAB=${MILKWEED_LAB:-$HOME/.cache/milkweed-lab}/slurm
NAME=${SLURM_LAB:-sl} # SLURM_LAB=other: a second cluster beside the first
RUN=$LAB/run
[ "$NAME" = sl ] || RUN=$LAB/run-$NAME
case $NAME in *[!a-z0-9]*) echo "SLURM_LAB: only a-z and 0-9" >&2; exit 2 ;; esac
TRIXIE_ROOT=$LAB/trixie # Debian 13 with Slurm 24.11
NET=10.77.0
export SLURM_CONF=$RUN/slurm.conf

ip_of() { echo "$NET.$((10 + $1))"; } # node i -> 10.77.0.(10+i); up to 240 nodes

init_of() { init_in "$NAME-n$1"; } # the pid of node I's init, seen from this machine

start_node() { # boots node I in its own namespaces
  ip -n "$NAME-head" link set "v$1" up
  setsid nsenter --net="/run/netns/$NAME-n$1" \
    unshare --uts --mount --pid --fork --kill-child=SIGKILL --mount-proc --propagation private \
    tini -s -g -- "$S/node-init.sh" "n$1" </dev/null >>"$RUN/log/n$1.boot" 2>&1 &
  disown
}

is_24() { [ "$(cat "$RUN/ver")" = 24 ]; }

enter_trixie() { # in a private mount namespace: make $TRIXIE_ROOT a usable root that shows this machine's own folders
  local d
  mount --bind "$TRIXIE_ROOT" "$TRIXIE_ROOT"
  for d in /*; do
    if [ ! -d "$d" ] || [ -L "$d" ]; then continue; fi
    case $d in /bin | /boot | /etc | /lib* | /lost+found | /run | /sbin | /usr | /var) continue ;; esac
    show "$d"
  done
  show /usr/local
  show_python
  show "$RUN"
  mount --bind "$RUN/hosts" "$TRIXIE_ROOT/etc/hosts"
}
show_python() { # Debian's own Python of this machine, where the tree has none; its libraries are the tree's
  local f
  for f in /usr/lib/python3*; do show "$f"; done
  for f in /usr/bin/python3 /usr/bin/python3.*[0-9]; do
    if [ -L "$f" ]; then
      ln -sfn "$(readlink "$f")" "$TRIXIE_ROOT$f"
    elif [ -e "$f" ]; then
      touch "$TRIXIE_ROOT$f"
      mount --bind "$f" "$TRIXIE_ROOT$f"
    fi
  done
}
has_python_libraries() { compgen -G "$TRIXIE_ROOT/usr/lib/*/libexpat.so.1" >/dev/null; } # trees from before show_python lack it
show() {
  mkdir -p "$TRIXIE_ROOT$1"
  mount --rbind "$1" "$TRIXIE_ROOT$1"
}

private_tmp() { # private_tmp HOST: its own /tmp; the folders in SHARED_TMP (below /tmp) stay shared
  [ "${PRIVATE_TMP:-1}" = 1 ] || return 0
  local own=$RUN/tmp/$1 d shared=${SHARED_TMP:-}
  mkdir -p "$own"
  chmod 1777 "$own"
  mount --bind "$own" "$own"
  case $LAB in /tmp/*) shared="$shared $LAB" ;; esac
  for d in $shared; do
    mkdir -p "$own${d#/tmp}"
    mount --rbind "$d" "$own${d#/tmp}"
  done
  mount --rbind "$own" /tmp
}
