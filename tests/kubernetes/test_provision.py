"""A program in a pod that has no rights in the cluster: the operator's endpoint makes its hosts."""

from __future__ import annotations

from pathlib import Path

from kubernetes.lab import WORKER, Lab
from kubernetes.operator_endpoint import provisioning, run_asking
from kubernetes.operators import Operating
from programs import PREAMBLE

DECLARE = (
    PREAMBLE
    + f"""
from milkweed.job.kubernetes import KubernetesJob, ImageSpec
from milkweed.errors import MilkweedError
where = dict(url=os.environ["URL"], ca="/var/run/asking/ca.pem", token_file="/var/run/asking/token")
os.chdir("/tmp")

def declare(hosts, image={WORKER!r}):
    job = KubernetesJob(os.environ["SPACE"], provision=where)
    job.add_mesh("w", hosts, image_spec=ImageSpec(image))
    return job
"""
)
PROGRAM = (
    DECLARE
    + """
try:
    declare(3).apply()
except MilkweedError as error:
    print("denied", str(error).replace(chr(10), " "))
job = declare(1)
state = job.state()
pods = lambda state: sorted(values(state.w.spawn_procs().spawn("p", Probe).variable.call("HOSTNAME").get()))
print("pods", pods(state))
job.resize("w", 2)
print("pods", pods(job.state()))
print("status", job.status().describe())
job.kill()
print("gone", job.active)
"""
)
# Two jobs of one account that give their mesh the same name.
RIVALS = (
    DECLARE
    + """
from milkweed.kube.asking import delete_mesh, look_up_mesh, read_endpoint
import time
place, here = read_endpoint(*where.values()), os.environ["SPACE"]
first, second = declare(1), declare(1)
first.state("first.json")
try:
    second.state("second.json")
except MilkweedError as error:
    print("refused", str(error).replace(chr(10), " "))
print("first", first.status().describe())
delete_mesh(place, here, "w", job=first.apply_id)
while look_up_mesh(place, here, "w"):
    time.sleep(0.2)
second.state("second.json")
print("then", first.status().describe())
first.kill()
print("second", second.status().describe())
second.kill()
print("gone", look_up_mesh(place, here, "w"))
"""
)


def test_a_pod_without_rights_has_a_job(
    lab: Lab, namespace: str, operating: Operating, tmp_path: Path
) -> None:
    """Made, used, made larger and ended; what the policy forbids is refused with the rule's name."""
    with provisioning(lab, tmp_path, namespace) as endpoint:
        out = run_asking(lab, namespace, PROGRAM, URL=endpoint.address, SPACE=namespace)
    assert "denied" in out
    assert "rule small" in out
    assert "pods ['w-0']" in out
    assert "pods ['w-0', 'w-1']" in out
    assert "status running, 2/2 hosts ready" in out
    assert "gone False" in out
    left = [name for name in lab.objects(namespace) if "w" in name.partition("/")[2][:2]]
    assert not left


def test_jobs_of_one_account_leave_each_other_alone(
    lab: Lab, namespace: str, operating: Operating, tmp_path: Path
) -> None:
    """A name that another job has is refused, and ending a job ends nothing that has its name by then."""
    with provisioning(lab, tmp_path, namespace) as endpoint:
        out = run_asking(lab, namespace, RIVALS, URL=endpoint.address, SPACE=namespace)
    assert "refused" in out
    assert "MonarchMesh 'w' of another job" in out
    assert "first running, 1/1 hosts ready" in out
    assert "then ended" in out
    assert "second running, 1/1 hosts ready" in out
    assert "gone None" in out
