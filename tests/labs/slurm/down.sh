#!/bin/bash
# down.sh : ends every process in the lab's network namespaces and removes these; the logs stay in $RUN/log. Safe to repeat.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
is_root || { echo "down.sh: needs root" >&2; exit 1; }
end_namespaces "$NAME"
rm -rf "${RUN:?}"/{tmp,spool,state,dev,munge,shared,head.pid}
echo down
