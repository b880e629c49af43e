"""`operator`: MonarchMesh objects on a Kubernetes cluster, and what is installed for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..plain import PlainCommand

app = typer.Typer(
    help="Serve MonarchMesh objects on a Kubernetes cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

NamespacesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        help="Serve this namespace only; may be given several times. Else all are served.",
        show_default=False,
    ),
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(help="The kubeconfig file; else what kubectl uses, or the pod's own account."),
]
ContextOption = Annotated[str | None, typer.Option(help="The context of the kubeconfig.")]


@app.command("run", cls=PlainCommand)
def run(  # noqa: PLR0917  options of a command line
    namespaces: NamespacesOption = None,
    identity: Annotated[
        str | None, typer.Option(help="The name of this operator in the lease; else one is made.")
    ] = None,
    lease_namespace: Annotated[
        str | None, typer.Option(help="Where the lease is; else the namespace of the kubeconfig.")
    ] = None,
    lease: Annotated[
        str, typer.Option(help="The lease of the operators of which one acts.")
    ] = "milkweed-operator",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where /healthz, /readyz and /metrics are.")
    ] = "127.0.0.1:8080",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Make StatefulSets and Services of meshes, until SIGTERM. Of several operators one acts."""
    from ...kube.api import Api
    from ...kube.config import load_config
    from ...operator.health import parse_address
    from ...operator.loop import Settings
    from ...operator.run import make_identity, run_operator

    address = parse_address(listen)
    config = load_config(context, kubeconfig)
    settings = Settings(
        identity=identity or make_identity(),
        lease_namespace=lease_namespace or config.namespace,
        lease=lease,
        namespaces=tuple(namespaces or ()),
    )
    run_operator(Api(config), settings, address)


@app.command("provision", cls=PlainCommand)
def provision(  # noqa: PLR0917  options of a command line
    policy: Annotated[Path, typer.Option(help="The file that says who may have what.")],
    cert: Annotated[Path, typer.Option(help="The endpoint's certificate, as PEM.")],
    key: Annotated[Path, typer.Option(help="Its key, as PEM.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where requests are taken.")
    ] = "0.0.0.0:8443",
    audience: Annotated[
        str, typer.Option(help="What the tokens of callers must be made for.")
    ] = "milkweed-provision",
    namespaces: NamespacesOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Make meshes for pods without rights, by a policy. Ends with SIGTERM."""
    from ...kube.api import Api
    from ...kube.config import load_config
    from ...operator.door import Certificate
    from ...operator.health import parse_address
    from ...operator.run import load_provisioner, run_provision

    address = parse_address(listen)
    api = Api(load_config(context, kubeconfig))
    provisioner = load_provisioner(api, policy, audience, tuple(namespaces or ()))
    run_provision(provisioner, Certificate(cert, key), address)


@app.command("manifests", cls=PlainCommand)
def manifests(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Where the operator will run.")
    ] = "milkweed-system",
    image: Annotated[
        str | None,
        typer.Option(help="An image that has the command milkweed.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Serve this namespace only, with rights in no other; may be given several times.",
            show_default=False,
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="How many operators; one acts.")] = 2,
    with_provision: Annotated[
        bool, typer.Option("--provision", help="The endpoint for pods without rights, too.")
    ] = False,
) -> None:
    """Print all that is installed, for `kubectl apply -f -`."""
    from ...operator.install import IMAGE, Install, make_install
    from ...operator.yaml import render_yaml

    asked = Install(
        namespace=namespace,
        image=image or IMAGE,
        only=tuple(only or ()),
        provision=with_provision,
        replicas=replicas,
    )
    typer.echo(render_yaml(make_install(asked)), nl=False)
