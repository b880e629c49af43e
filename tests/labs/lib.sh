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
