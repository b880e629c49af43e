"""An allocation on a Slurm that does what it is told, with keepers that answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.start import load_parts
from milkweed.job import lifecycle
from milkweed.spec import JobSpec, MeshSpec
from milkweed.state import StateFile
from unit.keepers import FakeKeeper, free_ports, host
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, render_nodes

NODES = ("n1", "n2", "n3")
MACHINES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class World:
    """An allocation of three hosts on three nodes, each of which is an address of this machine."""

    def __init__(self, slurm: FakeSlurm, home: Path) -> None:
        self.slurm = slurm
        self.folder = home / "jobs" / APPLY_ID
        [control] = free_ports(1)
        self.port = control - 1
        self.keepers: dict[str, FakeKeeper] = {}
        self.backend = SlurmBackend()
        self.show_nodes()
        slurm.answer("sbatch", "7\n")
        slurm.then("sbatch", '[ "$1" = --version ] && exec echo "slurm-wlm 22.05.8"')
        spec = self.spec(3)
        wish = lifecycle.Wish(spec=spec, backend=self.backend, apply_id=APPLY_ID)
        record, _file = lifecycle.create(wish, StateFile("job.json"))
        self.handle = dict(record.handle or {})
        self.run()

    def spec(self, hosts: int) -> JobSpec:
        """The job with so many hosts."""
        meshes = (MeshSpec(name="w", hosts=hosts),)
        return JobSpec(
            name="demo", backend="slurm", meshes=meshes, options={"monarch_port": self.port}
        )

    def show_nodes(self, **states: str) -> None:
        """The cluster's nodes, some of them in another state."""
        text = "".join(
            render_nodes(name, address=machine, state=states.get(name, "allocated"), reason="hw")
            for name, machine in zip(NODES, MACHINES, strict=True)
        )
        self.slurm.answer("sinfo", text)
        commands._nodes.clear()

    def run(self, nodes: str = "n[1-3]", **more: Any) -> None:
        """Slurm has given nodes."""
        self.slurm.jobs(line(7, nodes=nodes, **more))
        commands.queue.wake()

    def answer(self, rank: int, state: str = "ready", **more: Any) -> FakeKeeper:
        """A host's keeper answers on its node."""
        keeper = FakeKeeper(host(f"w/{rank}", state, **more), node=NODES[rank])
        keeper.job = APPLY_ID
        [certificate] = load_parts(self.folder, 0)[0]["certificates"]
        keeper.listen_tls(Path(certificate["folder"]), self.port + 1, MACHINES[rank])
        self.keepers[f"w/{rank}"] = keeper
        return keeper

    def close(self) -> None:
        """End all keepers."""
        for keeper in self.keepers.values():
            keeper.close()
