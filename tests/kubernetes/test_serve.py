"""`serve()` of an AppDef whose roles are pods: images, folders and ranks as torchx declares them."""

from __future__ import annotations

import re

import pytest

from kubernetes.lab import WORKER, Lab
from kubernetes.operators import Operating
from programs import LABS, Client

SERVE = """
from milkweed.job.spmd import SPMDJob, serve
from torchx import specs

role = specs.Role(
    name="trainer", image={image!r}, entrypoint="torchrun", num_replicas=2,
    args=["--nnodes=2", "--nproc-per-node=2", "train.py"],
    env={{"MODE": "fast"}}, resource=specs.resource(cpu=1, gpu=0, memMB=512),
)
role.workspace = os.getcwd()
app = specs.AppDef(name="my-training", roles=[role])
job = serve(app, scheduler="kubernetes", scheduler_cfg={{"namespace": {namespace!r}}})
job.run_spmd()
again = SPMDJob(job.handle, "kubernetes")
again.run_spmd()
job.kill()
"""
TRAIN = """
import os
import beside

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["MODE"], beside.WORD)
print("pod", os.environ["HOSTNAME"])
"""


@pytest.mark.parametrize("version", ["0.7.0", pytest.param("nightly", marks=pytest.mark.slow)])
def test_an_appdef_on_pods(
    client: Client, lab: Lab, namespace: str, operating: Operating, version: str
) -> None:
    """The role's image makes the pods, its workspace is sent to them, ranks start there; kill() ends all."""
    torchx = LABS / f"torchx-{version}"
    if not torchx.is_dir():
        pytest.skip(f"torchx {version} is not here")
    before = lab.objects(namespace)
    (client.folder / "train.py").write_text(TRAIN)
    (client.folder / "beside.py").write_text("WORD = 'sent along'\n")
    path = ":".join(filter(None, [str(torchx), client.env.get("PYTHONPATH", "")]))
    out = client.run(SERVE.format(image=WORKER, namespace=namespace), PYTHONPATH=path)
    for rank in range(4):
        assert out.count(f"rank {rank} of 4 fast sent along") == 2
    for rank in range(2):
        assert len(re.findall(rf"pod trainer\w+-{rank}", out)) == 4
    lab.wait_objects(namespace, before)
