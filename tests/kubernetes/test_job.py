"""KubernetesJob as people use it: programs in the cluster or outside, hosts in pods that the operator makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from kubernetes.lab import WORKER, Lab
from kubernetes.operators import Meshes, Operating
from programs import Client

IMPORTS = "from milkweed.job.kubernetes import KubernetesJob, ImageSpec"
USE = """
probes = state.w.spawn_procs().spawn("p", Probe)
print("pods", sorted(values(probes.variable.call("HOSTNAME").get())))
"""


def simple(namespace: str, hosts: int = 2, *rest: str) -> str:
    """A program that asks for one mesh from an image, and uses it."""
    lines = [
        IMPORTS,
        f"job = KubernetesJob({namespace!r})",
        f"job.add_mesh('w', {hosts}, image_spec=ImageSpec({WORKER!r}))",
        "state = job.state()",
        USE,
        *rest,
    ]
    return "\n".join(lines)


def test_pods_from_an_image(client: Client, lab: Lab, namespace: str, operating: Operating) -> None:
    """A declaration, its state, actors on every pod of both meshes; kill() leaves nothing."""
    before = lab.objects(namespace)
    out = client.run(f"""
        {IMPORTS}
        image = ImageSpec({WORKER!r}, resources={{"cpu": "100m", "memory": "1Gi"}})
        job = KubernetesJob({namespace!r})
        job.add_mesh("trainers", 2, image_spec=image, labels={{"team": "a"}})
        job.add_mesh("loaders", 1, image_spec=image)
        state = job.state()
        trainers = state.trainers.spawn_procs(per_host={{"gpus": 2}}).spawn("t", Probe)
        loaders = state.loaders.spawn_procs().spawn("l", Probe)
        print("pids", len(values(trainers.pid.call().get())), len(values(loaders.pid.call().get())))
        print("pods", sorted(set(values(trainers.variable.call("HOSTNAME").get()))))
        job.kill()
    """)
    assert "pids 4 1" in out
    assert "pods ['trainers-0', 'trainers-1']" in out
    lab.wait_objects(namespace, before)


def test_a_laptop_that_reaches_nothing_but_the_api_server(
    outside_client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Orders and actors go through the API server to one pod, and from there to all."""
    out = outside_client.run(f"""
        {IMPORTS}
        job = KubernetesJob({namespace!r})
        job.add_mesh("w", 2, image_spec=ImageSpec({WORKER!r}))
        state = job.state()
        trainers = state.w.spawn_procs(per_host={{"gpus": 2}}).spawn("t", Probe)
        print("pids", len(values(trainers.pid.call().get())))
        trainers.say.call("hello").get()
        # In one piece: what actors say comes between others.
        print("pods " + str(sorted(set(values(trainers.variable.call("HOSTNAME").get())))))
        job.kill()
    """)
    assert "pids 4" in out
    assert out.count("hello") == 4
    assert "pods ['w-0', 'w-1']" in out
    lab.wait_empty(namespace)


def test_pods_from_a_spec_and_from_a_template(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """What a pod's spec says stays: volumes, sidecars, labels; the worker is put into it."""
    out = client.run(f"""
        {IMPORTS}
        spec = {{
            "volumes": [{{"name": "scratch", "emptyDir": {{}}}}],
            "containers": [
                {{"name": "worker", "image": {WORKER!r},
                  "env": [{{"name": "COLOUR", "value": "green"}}],
                  "volumeMounts": [{{"name": "scratch", "mountPath": "/scratch"}}]}},
                {{"name": "side", "image": "localhost/busybox:1",
                  "command": ["sh", "-c", "trap exit TERM; sleep 1000 & wait"]}},
            ],
        }}
        job = KubernetesJob({namespace!r})
        job.add_mesh("a", 1, pod_spec=spec)
        template = {{"metadata": {{"labels": {{"tier": "x"}}}}, "spec": spec}}
        job.add_mesh("b", 1, pod_template=template, annotations={{"note": "n"}})
        state = job.state()
        for mesh in (state.a, state.b):
            probes = mesh.spawn_procs().spawn("p", Probe)
            print("colour", values(probes.variable.call("COLOUR").get()))
    """)
    assert out.count("colour ['green']") == 2
    meshes = Meshes(lab, namespace)
    assert meshes.pods()["b-0"]["metadata"]["labels"]["tier"] == "x"
    assert len(meshes.pods()["a-0"]["spec"]["containers"]) == 2
    client.run("job_load().kill()")
    lab.wait_empty(namespace)


def test_an_existing_mesh_is_patched(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """A MonarchMesh that somebody made before is used for the mesh of its name, and changed."""
    meshes = Meshes(lab, namespace)
    meshes.apply(meshes.make("w", replicas=1))
    meshes.wait_ready("w")
    uid = meshes.get("w")["metadata"]["uid"]
    out = client.run(simple(namespace))
    assert "pods ['w-0', 'w-1']" in out
    assert meshes.get("w")["metadata"]["uid"] == uid
    client.run("job_load().kill()")


def test_a_second_program_and_other_sizes(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The second program connects to the pods of the first; sizes change, and pods that stay are the same."""
    code = simple(namespace, 2, "print('id', job.apply_id)")
    first, second = client.run(code), client.run(code)
    ids = [line for line in (first + second).splitlines() if line.startswith("id ")]
    assert ids[0] == ids[1]
    meshes = Meshes(lab, namespace)
    before = meshes.uids()
    out = client.run("job = job_load()\njob.resize('w', 3)\nstate = job.state()\n" + USE)
    assert "pods ['w-0', 'w-1', 'w-2']" in out
    assert before.items() <= meshes.uids().items()
    out = client.run("job = job_load()\njob.resize('w', 1)\nstate = job.state()\n" + USE)
    assert "pods ['w-0']" in out
    assert meshes.uids()["w-0"] == before["w-0"]
    client.run("job_load().kill()")
    lab.wait_empty(namespace)


def milkweed(client: Client, *argv: str, code: int = 0) -> str:
    """What a command of milkweed prints."""
    done = subprocess.run(
        [sys.executable, "-m", "milkweed", *argv],
        cwd=client.folder,
        env=client.env,
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == code, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_command_line(
    client: Client, lab: Lab, namespace: str, operating: Operating, folder: Path
) -> None:
    """A job file, and all that people do with it: plan, apply, exec, logs, status, ls, kill."""
    (folder / "milkweed.yaml").write_text(f"""
name: demo
on: kubernetes
meshes:
  w: {{hosts: 2, cpus: 1}}
kubernetes:
  namespace: {namespace}
  image: {WORKER}
""")
    assert "create: job 'demo' on kubernetes (w=2)" in milkweed(client, "plan")
    milkweed(client, "apply")
    out = milkweed(client, "exec", "--", "sh", "-c", "echo here $HOSTNAME")
    assert out.count("here wx") == 2
    assert milkweed(client, "exec", "--host", "w/1", "--", "sh", "-c", "exit 3", code=3) is not None
    client.write(
        """
        from milkweed.job import load_current_job
        state = load_current_job().state()
        state.w.spawn_procs().spawn("p", Probe).say.call("hi there").get()
        """,
        "train.py",
    )
    milkweed(client, "run", "train.py")
    assert "hi there" in milkweed(client, "logs", "--host", "w/1")
    assert "running, 2/2 hosts ready" in milkweed(client, "status")
    assert "demo" in milkweed(client, "ls")
    pods = Meshes(lab, namespace).pods()
    assert {
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in pods.values()
    } == {"1"}
    milkweed(client, "kill")
    lab.wait_empty(namespace)


def test_all_local_files_are_gone(
    client: Client, lab: Lab, namespace: str, operating: Operating, folder: Path
) -> None:
    """The cluster still knows the job: it is listed, and can be ended."""
    client.run(simple(namespace, 1))
    apply_id = json.loads((folder / ".milkweed" / "job.json").read_text())["apply_id"]
    lost = Client(folder, folder / "another-home")
    assert apply_id[:8] in milkweed(lost, "ls", "--on", "kubernetes")
    milkweed(lost, "kill", "--on", "kubernetes", apply_id)
    lab.wait_empty(namespace)


def test_nothing_secret_is_seen(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Keys and values of variables are in Secrets, and in nothing that others may read."""
    client.run(f"""
        {IMPORTS}
        from dataclasses import replace
        job = KubernetesJob({namespace!r})
        job.add_mesh("w", 1, image_spec=ImageSpec({WORKER!r}))
        job._spec = replace(job.spec, env={{"TOKEN": "s3cret"}})
        state = job.state()
        print(values(state.w.spawn_procs().spawn("p", Probe).variable.call("TOKEN").get()))
    """)
    kinds = "monarchmeshes,statefulsets,services,pods,events,controllerrevisions"
    shown = lab.kubectl("-n", namespace, "get", kinds, "-o", "yaml").stdout
    assert "s3cret" not in shown
    assert "PRIVATE KEY" not in shown
    [pod] = Meshes(lab, namespace).pods().values()
    argv = lab.in_pod(namespace, pod["metadata"]["name"], "sh", "-c", "cat /proc/[0-9]*/cmdline")
    assert "s3cret" not in argv.stdout
    security = pod["spec"]["containers"][0]["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert pod["spec"]["automountServiceAccountToken"] is False
    client.run("job_load().kill()")


def test_a_stranger_in_the_cluster_is_not_let_in(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """A host takes nobody without a certificate of its job, not even from the next pod."""
    client.run(simple(namespace, 1))
    [pod] = Meshes(lab, namespace).pods().values()
    code = f"""
import socket, ssl
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for port in (26600, 26601):
    try:
        with context.wrap_socket(socket.create_connection(({pod["status"]["podIP"]!r}, port), 5)) as s:
            s.sendall(b'{{"op": "status"}}\\n')
            print("answer", port, s.recv(100) or "nothing")
    except OSError as error:
        print("refused", port, error)
"""
    lab.start_pod(namespace, "stranger", "python3", "-c", code)
    lab.wait_phase(namespace, "stranger", "Succeeded")
    said = lab.logs(namespace, "stranger")
    assert "refused 26600" in said or "answer 26600 nothing" in said
    assert "refused 26601" in said or "answer 26601 nothing" in said
    client.run("job_load().kill()")


def test_ranks_of_a_torchrun_program(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Programs in the manner of torchrun run on pods as on any hosts; neither torch nor their files are needed."""
    out = client.run(f"""
        {IMPORTS}
        job = KubernetesJob({namespace!r})
        job.add_mesh("w", 2, image_spec=ImageSpec({WORKER!r}))
        words = "echo rank $RANK of $WORLD_SIZE on $HOSTNAME, master $MASTER_ADDR"
        job.torchrun(["--nnodes=2", "--nproc-per-node=2", "--no-python", "sh", "-c", words])
        job.kill()
    """)
    for rank, pod in enumerate(("w-0", "w-0", "w-1", "w-1")):
        assert f"rank {rank} of 4 on {pod}, master" in out
    lab.wait_empty(namespace)


def test_the_next_program_has_a_way_of_its_own(
    outside_client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Where pods cannot be dialled, `reach="forward"` helps with the pods that are there."""

    def declare(reach: str, timeout_s: int) -> str:
        said = f"{namespace!r}, timeout={timeout_s}, reach={reach!r}"
        mesh = f"job.add_mesh('w', 1, image_spec=ImageSpec({WORKER!r}))"
        return "\n".join([IMPORTS, f"job = KubernetesJob({said})", mesh, "state = job.state()"])

    outside_client.run(declare("direct", 4), code_expected=1)
    [before] = lab.get("pods", "-n", namespace)["items"]
    assert "pods ['w-0']" in outside_client.run(declare("forward", 60) + USE)
    [after] = lab.get("pods", "-n", namespace)["items"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    outside_client.kill()
