# shellcheck shell=bash
# Shared by both labs. A lab is what runs in its network namespaces: PREFIX-head, PREFIX-n1, ... No pid files, so nothing of
# another program is ever killed.

since() { LC_ALL=C awk -v a="${1/,/.}" -v b="${EPOCHREALTIME/,/.}" 'BEGIN { printf "%.1f s", b - a }'; } # since $EPOCHREALTIME

is_root() { [ "$(id -u)" = 0 ]; }

init_in() { # init_in NAMESPACE: the pid, seen from this machine, of the PID 1 of the node there
  local p
  for p in $(ip netns pids "$1" 2>/dev/null); do
    [ "$(awk '/^NSpid:/ { print NF, $NF }' "/proc/$p/status" 2>/dev/null)" != "3 1" ] || { echo "$p"; return; }
  done
  echo "$1 does not run" >&2
  return 1
}

end_namespaces() { # end_namespaces PREFIX: ends every process in its network namespaces, and removes them
  local ns pids p
  for ns in /run/netns/"$1"-*; do
    [ -e "$ns" ] || continue
    ns=${ns##*/}
    for _ in $(seq 100); do
      pids=$(ip netns pids "$ns")
      [ -n "$pids" ] || break
      for p in $pids; do kill -9 "$p" 2>/dev/null || true; done
      sleep 0.05
    done
    ip netns del "$ns"
  done
  if [ -d /run/netns ] && [ -z "$(ls -A /run/netns)" ]; then # "ip netns" made it a mount point, and will again
    umount /run/netns 2>/dev/null || true
  fi
}

child=
down_after() { # down_after DOWN NAME: whatever ends this script from now on, DOWN takes the cluster NAME down
  DOWN=$1 DOWN_NAME=$2
  trap down EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

down() {
  local rc=$?
  trap '' HUP INT TERM
  if [ -n "$child" ]; then
    [ "$rc" = 130 ] || kill -TERM "$child" 2>/dev/null || true # Ctrl-C it has heard itself
    for _ in $(seq 50); do # it may have something to say
      kill -0 "$child" 2>/dev/null || break
      sleep 0.1
    done
  fi
  "$DOWN" >/dev/null 9>&- || { echo "with.sh: the cluster $DOWN_NAME was not taken down" >&2; rc=1; }
  exit "$rc"
}

run_child() { # run_child CMD...: runs CMD and exits as it does. In the background, or no signal would reach this script before
  # CMD ends; with the usual input and signals.
  local rc=0
  env --default-signal=INT,QUIT "$@" <&0 9>&- &
  child=$!
  wait "$child" || rc=$?
  child=
  exit "$rc"
}
