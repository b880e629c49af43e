#!/bin/sh
# milkweed: job demo, allocation 11111111-2222-4333-8444-555555555555
mask=$(umask)
umask 077
unset SLURM_CPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_DISTRIBUTION SLURM_CPU_BIND SLURM_EXACT SLURM_TRES_PER_TASK SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_NTASKS SLURM_NPROCS SLURM_THREADS_PER_CORE SLURM_HINT SLURM_EXCLUSIVE
unset $(env | sed -n 's/^\(SRUN_[A-Za-z0-9_]*\)=.*/\1/p')
logs=/home/ann/logs/demo-11111111
if ! [ -w "$logs" ]; then
  logs=$(mktemp -dt milkweed-logs-XXXXXX)
  trap 'rm -rf "$logs"' EXIT
  trap 'exit 143' TERM
fi
rm -f /home/ann/.local/state/milkweed/jobs/11111111-2222-4333-8444-555555555555/up-2.3.*
python=/opt/py/bin/python
loader='import gc
gc.disable()
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import os
try:
    here, said = os.getcwd(), os.environ.get("PYTHONPATH")
    said = [word for word in said.split(os.pathsep) if os.path.abspath(word) == here] if said else []
    if said and not any(map(os.path.isabs, said)):
        sys.path[:] = [folder for folder in sys.path if folder != here]
except OSError:
    pass
import json, os
invitation = {**json.load(sys.stdin), "umask": sys.argv[1]}
path = invitation["source"]
if not os.path.isfile(path + "/milkweed/worker/remote.py"):
    import base64, tempfile
    fd, path = tempfile.mkstemp(suffix=".zip", prefix="milkweed-")
    os.write(fd, base64.b64decode(invitation["worker"]))
    os.close(fd)
sys.path.insert(0, path)
from milkweed.worker.remote import main
if path != invitation["source"]:
    os.unlink(path)
code = main(invitation)
sys.stderr.flush()
os._exit(code)'
started=
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --distribution=block --overlap --mem=0 --cpu-bind=none --mpi=none --kill-on-bad-exit=0 --wait=0 --unbuffered --label "$python" -c "$loader" "$mask" >"$logs/part.2.3.log" 2>&1 <<'MILKWEED_INVITATION' &
{"apply_id": "11111111-2222-4333-8444-555555555555", "part": "2.3", "folder": "/home/ann/.local/state/milkweed/jobs/11111111-2222-4333-8444-555555555555", "port": 22222, "bells": [], "keep": true, "index_env": "SLURM_PROCID", "node_env": "SLURMD_NODENAME", "restart_env": "SLURM_RESTART_COUNT", "end": ["scancel", "$SLURM_JOB_ID"], "source": "<source>", "worker": "<worker>"}
MILKWEED_INVITATION
started="$started $!"
trap '' USR1 USR2
code=0
for pid in $started; do wait "$pid" || code=$?; done
exit "$code"
