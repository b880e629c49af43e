"""The keys that the blocks of the built-in backends may have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .errors import SpecError
from .options import OptionField, OptionTable

_STREAM_LOGS = OptionField(
    "bool", "Show what the hosts print, as they print it.", default=True, client=True
)

PROCESS_OPTIONS: OptionTable = MappingProxyType(
    {
        "transport": OptionField(
            "text",
            "How client and hosts talk: sockets of this machine, or TCP with mutual TLS.",
            choices=("ipc", "tls"),
            default="ipc",
        ),
        "log_dir": OptionField("folder", "The folder for the logs of the hosts."),
        "python_exe": OptionField("text", "The Python that runs the workers; else this one."),
        "start_timeout": OptionField("duration", "How long a host may take to start.", client=True),
        "stream_logs": _STREAM_LOGS,
    }
)
LOCAL_OPTIONS: OptionTable = MappingProxyType({"stream_logs": _STREAM_LOGS})
FAKE_OPTIONS: OptionTable = MappingProxyType({})


ON_INTERRUPT = ("ask", "keep", "cancel")

PORTS = 64
"""How many ports a host may use, from the first one on."""


def check_port(first: object, block: str = "slurm") -> None:
    """Refuse a first port that leaves no room for the others."""
    if isinstance(first, int) and not 1 <= first <= 65536 - PORTS:
        raise SpecError(
            f"{block}.monarch_port: {first} is not the first of {PORTS} ports",
            hint=f"give one from 1 to {65536 - PORTS}",
        )


_SHAPE = {
    "partition": OptionField("text", "The partition; else the cluster's default one."),
    "account": OptionField("text", "The account to charge."),
    "qos": OptionField("text", "The quality of service."),
    "constraint": OptionField("text", "Features that every node must have."),
    "ntasks_per_node": OptionField(
        "int", "How many tasks each host's share is counted as.", minimum=1, default=1
    ),
    "cpus_per_task": OptionField("int", "CPUs for each of them.", minimum=1),
    "gpus_per_node": OptionField("int", "GPUs of each host.", minimum=0),
    "mem": OptionField("text", "Memory of each host, as Slurm writes it: 64G, or megabytes."),
    "exclusive": OptionField("bool", "Share nodes with nobody.", default=True),
    "slurm_args": OptionField("texts", "More options of sbatch, as they are."),
}
MESH_OPTIONS: OptionTable = MappingProxyType(dict(_SHAPE))
"""What a mesh may say for itself, in `slurm: {meshes: {trainers: …}}`."""

_NODE_HOSTS = {
    "monarch_port": OptionField(
        "int", "The first of the 64 ports that hosts listen on.", minimum=1, default=22222
    ),
    "python_exe": OptionField(
        "text",
        "The Python of the hosts; `python` is this very one where a host has it.",
        default="python",
    ),
    "log_dir": OptionField("folder", "Where the hosts' logs are kept; else they go with the job."),
    "start_timeout": OptionField(
        "duration", "How long to wait for the hosts; the job stays in the queue.", client=True
    ),
    "stream_logs": _STREAM_LOGS,
    "on_interrupt": OptionField(
        "text",
        "What Ctrl-C does with a job that waits in the queue.",
        choices=ON_INTERRUPT,
        default="ask",
        client=True,
    ),
}
"""What hosts on nodes of a scheduler have in common."""

SLURM_OPTIONS: OptionTable = MappingProxyType(
    {
        **_SHAPE,
        "meshes": OptionField("data", "The same keys for single meshes, by name."),
        "time_limit": OptionField("text", "As Slurm writes it: 90, 1:30:00, 2-12; or 90m, 12h."),
        **_NODE_HOSTS,
        "survive_node_failure": OptionField(
            "bool",
            "Keep the other hosts when a node fails; else Slurm ends the job and queues it again.",
            default=True,
        ),
        "renew": OptionField(
            "text",
            "Ask for a follow-up job in time: `before time limit`, or how long before it, such as 30m.",
            client=True,
        ),
    }
)

_FLUX_SHAPE = {
    "queue": OptionField("text", "The queue; else the instance's default one."),
    "bank": OptionField("text", "The bank to charge."),
    "properties": OptionField("texts", "Properties that every node must have; ^name for not."),
    "cpus_per_host": OptionField("int", "Cores of each host.", minimum=1),
    "gpus_per_host": OptionField("int", "GPUs of each host.", minimum=0),
    "exclusive": OptionField("bool", "Share nodes with nobody.", default=True),
}
FLUX_MESH_OPTIONS: OptionTable = MappingProxyType(dict(_FLUX_SHAPE))
"""What a mesh may say for itself, in `flux: {meshes: {trainers: …}}`."""

FLUX_OPTIONS: OptionTable = MappingProxyType(
    {
        "uri": OptionField(
            "text",
            "The instance: local://…, ssh://…, or the id of a job that is one; else the one around.",
        ),
        **_FLUX_SHAPE,
        "meshes": OptionField("data", "The same keys for single meshes, by name."),
        "time_limit": OptionField("text", "Minutes as a number, or 90m, 12h, 2d."),
        **_NODE_HOSTS,
        "survive_node_failure": OptionField(
            "bool",
            "Keep the other hosts when a node fails that is not the job's first; else Flux ends the job.",
            default=True,
        ),
    }
)


KUBERNETES_OPTIONS: OptionTable = MappingProxyType(
    {
        "namespace": OptionField("text", "The namespace; else the one of the context."),
        "context": OptionField("text", "The context of the kubeconfig; else the current one."),
        "kubeconfig": OptionField("text", "The kubeconfig file; else the one that kubectl uses."),
        "image": OptionField(
            "text", "The image of all meshes; it must have Python and the engine."
        ),
        "port": OptionField("int", "The first of the 64 ports that hosts listen on.", minimum=1),
        "meshes": OptionField("data", "What is different for single meshes, by name."),
        "provision": OptionField(
            "data",
            "The operator's endpoint that makes hosts for pods without rights: its address.",
            client=True,
        ),
        "images": OptionField(
            "data", "What is to be done in the containers of a mesh, by its name.", client=True
        ),
        "sync_dirs": OptionField(
            "texts", "Folders of this machine that hosts get, and import from.", client=True
        ),
        "client_resources": OptionField(
            "data", "What a batch client gets, by Kubernetes' names: cpu, memory.", client=True
        ),
        "renew": OptionField(
            "text",
            "Give hosts more time before their time limit: `before time limit`, or how long before it.",
            client=True,
        ),
        "reach": OptionField(
            "text",
            "How pods are reached: by their names, or through the API server.",
            choices=("auto", "direct", "forward"),
            default="auto",
            client=True,
        ),
        "start_timeout": OptionField(
            "duration", "How long to wait for the hosts; what was asked for stays.", client=True
        ),
        "stream_logs": _STREAM_LOGS,
        "on_interrupt": OptionField(
            "text",
            "What Ctrl-C does with a job whose pods wait.",
            choices=ON_INTERRUPT,
            default="ask",
            client=True,
        ),
    }
)


BUILTIN_OPTIONS: Mapping[str, OptionTable] = MappingProxyType(
    {
        "fake": FAKE_OPTIONS,
        "flux": FLUX_OPTIONS,
        "local": LOCAL_OPTIONS,
        "process": PROCESS_OPTIONS,
        "kubernetes": KUBERNETES_OPTIONS,
        "slurm": SLURM_OPTIONS,
    }
)
"""The tables of the backends that come with milkweed, by name."""
