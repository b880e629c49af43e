#!/bin/bash
# ctl.sh stop           ends the controller, and waits until it is gone; jobs go on. One that does not end within 20 s is killed
# ctl.sh start          starts it again with the jobs it knew, and waits until it answers
# ctl.sh restart        both
# ctl.sh freeze | thaw  makes it silent: connections to it hang | lets it go on
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
usage() { sed -n '2,/^set/{/^#/s/^# //p}' "$0" >&2; exit 2; }
fail() { echo "ctl.sh: $1" >&2; exit 1; }
[ $# = 1 ] || usage
[ -e "/run/netns/$NAME-head" ] || fail "no cluster runs: start one with up.sh"

running() { # the controller (slurmctld-wlm after 24.11 has read its settings anew) and its helper, one pid a line, the first first
  local p comm main="" rest=""
  for p in $(ip netns pids "$NAME-head"); do
    comm=$(cat "/proc/$p/comm" 2>/dev/null || true)
    case $comm in
      slurmctld*) main+="$p"$'\n' ;;
      slurmscriptd) rest+="$p"$'\n' ;;
    esac
  done
  printf '%s%s' "$main" "$rest"
}

send() { # send SIGNAL: to the controller only, which looks after its helper
  local pid
  pid=$(running | sed -n 1p) # reads all of it: head would break the pipe
  [ -n "$pid" ] || fail "the controller does not run"
  kill -"$1" "$pid"
}

stop() {
  local p
  send TERM
  for p in $(running); do kill -CONT "$p" 2>/dev/null || true; done # a frozen one does not hear
  for _ in $(seq 400); do
    [ -n "$(running)" ] || return 0
    sleep 0.05
  done
  echo "ctl.sh: the controller did not end within 20 s, and is killed" >&2
  for p in $(running); do kill -KILL "$p" 2>/dev/null || true; done
  for _ in $(seq 100); do
    [ -n "$(running)" ] || return 0
    sleep 0.05
  done
  fail "the controller cannot be killed"
}

start() {
  [ -z "$(running)" ] || fail "the controller runs already"
  "$S/login" slurmctld -f "$SLURM_CONF"
  for _ in $(seq 100); do
    ! timeout 2 "$S/login" scontrol ping 2>/dev/null | grep -q ' is UP' || return 0
    sleep 0.1
  done
  tail -n 5 "$RUN/log/slurmctld.log" >&2
  fail "the controller does not answer"
}

case $1 in
  stop) stop ;;
  start) start ;;
  restart) stop && start ;;
  freeze) send STOP ;;
  thaw) send CONT ;;
  *) usage ;;
esac
