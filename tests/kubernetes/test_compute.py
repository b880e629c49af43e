"""Hosts from a Compute and an Image: the steps of the image are done on the pods, from the first that changed."""

from __future__ import annotations

from pathlib import Path

from kubernetes.lab import WORKER, Lab
from kubernetes.operators import Meshes, Operating
from programs import Client


def declare(namespace: str, steps: str, *rest: str) -> str:
    """A program with an image of some steps."""
    lines = [
        "from milkweed import Compute, Image, KubernetesJob",
        f"image = Image().from_docker({WORKER!r}){steps}",
        "compute = Compute(cpus='100m', replicas=2, image=image)",
        f"job = KubernetesJob(compute=compute, namespace={namespace!r}, sync_dirs=DIRS)",
        "state = job.state()",
        "probes = state.workers.spawn_procs().spawn('p', Probe)",
        *rest,
    ]
    return "\n".join(lines)


FILES = ("/srv/first", "/srv/data.txt")
SHOW = "print('colour', values(probes.variable.call('COLOUR').get()))"


def test_steps_are_done_once_and_from_the_first_that_changed(
    client: Client, lab: Lab, namespace: str, operating: Operating, folder: Path
) -> None:
    """A second program finds them done; one with another step goes on from there; files are copied."""
    (folder / "data.txt").write_text("one")
    steps = (
        ".run_bash('date +%s%N >>/srv/first')"
        ".set_env_vars({'COLOUR': 'red'})"
        ".copy('data.txt', '/srv/data.txt')"
    )
    meshes = Meshes(lab, namespace)
    out = client.run("DIRS = []\n" + declare(namespace, steps, SHOW))
    assert "colour ['red', 'red']" in out
    pods = sorted(meshes.pods())
    first = [lab.in_pod(namespace, pod, "cat", *FILES).stdout for pod in pods]
    assert all(text.endswith("one") for text in first)
    (folder / "data.txt").write_text("two")
    changed = steps.replace("'red'", "'blue'")
    out = client.run("DIRS = []\n" + declare(namespace, changed, SHOW))
    assert "colour ['blue', 'blue']" in out
    second = [lab.in_pod(namespace, pod, "cat", *FILES).stdout for pod in pods]
    assert [text.removesuffix("two") for text in second] == [
        text.removesuffix("one") for text in first
    ]
    client.run("job_load().kill()")


def test_a_step_that_fails_is_told_with_its_output(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The host, the step as it was written, its exit code and the last lines; then it can be mended."""
    broken = ".run_bash('echo so far so good; echo oh no >&2; exit 3')"
    out = client.run("DIRS = []\n" + declare(namespace, broken), code_expected=1)
    assert "StepFailedError" in out
    assert "exit 3" in out
    assert "oh no" in out
    assert "workers/" in out
    out = client.run("DIRS = []\n" + declare(namespace, ".set_env_vars({'COLOUR': 'green'})", SHOW))
    assert "colour ['green', 'green']" in out
    client.run("job_load().kill()")
    lab.wait_empty(namespace)


def test_folders_are_sent_and_imported_from(
    outside_client: Client, lab: Lab, namespace: str, operating: Operating, folder: Path
) -> None:
    """From a laptop: a module of the project is imported by the actors, and again after it changed."""
    project = folder / "project"
    project.mkdir()
    (project / "recipe.py").write_text("FLAVOUR = 'vanilla'\n")
    use = """
class Cook(Actor):
    @endpoint
    def taste(self):
        import recipe
        return recipe.FLAVOUR, recipe.__file__
print("taste", values(state.workers.spawn_procs().spawn("c", Cook).taste.call().get()))
"""
    code = "DIRS = ['project']\n" + declare(namespace, "", use)
    out = outside_client.run(code)
    assert out.count("'vanilla'") == 2
    assert "milkweed-code/project/recipe.py" in out
    (project / "recipe.py").write_text("FLAVOUR = 'pistachio'\n")
    assert outside_client.run(code).count("'pistachio'") == 2
    outside_client.run("job_load().kill()")


def test_the_repository_that_a_program_is_in_is_sent(
    client: Client, lab: Lab, namespace: str, operating: Operating, folder: Path
) -> None:
    """Where nobody says what is to be sent."""
    (folder / ".git").mkdir()
    (folder / "recipe.py").write_text("FLAVOUR = 'lemon'\n")
    use = """
class Cook(Actor):
    @endpoint
    def taste(self):
        import recipe
        return recipe.FLAVOUR
print("taste", values(state.workers.spawn_procs().spawn("c", Cook).taste.call().get()))
job.kill()
"""
    out = client.run("DIRS = None\n" + declare(namespace, "", use))
    assert "taste ['lemon', 'lemon']" in out
    lab.wait_empty(namespace)


def test_what_a_compute_says_is_what_pods_are(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Its fields arrive in the pods; a context manager ends the job."""
    out = client.run(f"""
        from milkweed import Compute, KubernetesJob
        compute = Compute(
            cpu="100m", memory="512Mi", image={WORKER!r}, env_vars={{"COLOUR": "green"}},
            labels={{"team": "a"}}, annotations={{"note": "n"}}, shared_memory_limit="64Mi",
            launch_timeout="1m", node_selector={{"kubernetes.io/os": "linux"}},
        )
        with KubernetesJob(compute=compute, namespace={namespace!r}, name="lunch") as job:
            state = job.state()
            probes = state.workers.spawn_procs().spawn("p", Probe)
            {SHOW}
            import json, subprocess
            found = subprocess.run(
                ["{lab_kubectl()}", "-n", {namespace!r}, "get", "pods", "-o", "json"],
                capture_output=True, text=True, check=True).stdout
            print("pods", found.replace("\\n", " "))
    """)
    assert "colour ['green']" in out
    for words in ('"team": "a"', '"note": "n"', '"memory": "512Mi"', '"sizeLimit": "64Mi"'):
        assert words in out
    lab.wait_empty(namespace)


def lab_kubectl() -> str:
    """The lab's kubectl."""
    return str(Path(__file__).parents[1] / "labs" / "kubernetes" / "kubectl")
