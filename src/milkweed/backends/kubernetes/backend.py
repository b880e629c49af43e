"""Hosts from Kubernetes: pods that an operator makes from MonarchMesh objects, or that exist already."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ... import registry
from ...control import RemoteLog
from ...errors import MilkweedError, UnreachableError
from ...hosts import Host
from ...kube.api import Api
from ...kube.resources import JOBS, MESHES, SECRETS
from ...option_tables import KUBERNETES_OPTIONS
from ...options import OptionField
from ...plan import Renewal
from ...spec import JobSpec
from ...status import HostState, HostStatus, Liveness, Status
from ...worker.wire import STATE_ENV
from .. import keepers
from ..base import Capabilities, Handle, LogLine, Look, Request
from ..keepers import Answer, ask_all, check_running, follow_hosts
from ..packing import pack_worker
from . import blind, cluster
from .asked import AskedApi, endpoint_of
from .batch import check_batch, read_resources
from .blind import is_blind
from .client_log import ClientLog
from .clients import read_client
from .credentials import ensure_authority
from .finding import (
    choose_api,
    delete_objects,
    find_handle,
    find_marked,
    list_objects,
    make_handle,
    reach_api,
    read_meshes,
    reroute,
)
from .last_words import add_last_words
from .making import Maker, check_templates, load_place, save_place
from .meeting import is_kept, is_met, note_kept, note_met
from .places import AnyApi, Pod, ask_pod, make_door, make_host, pods_in, selectors_of
from .pod_parts import part
from .renewal import check_renewal, describe_time, give_time, judge_time
from .settings import DEFAULT_NAMESPACE, make_plans
from .start import JOB_LABEL, NAME_NOTE
from .status import judge_pod, make_status
from .told import NOTHING
from .which import check_same

CLIENT = "client"


class KubernetesBackend:
    """A Kubernetes cluster, reached through its API server."""

    name: ClassVar[str] = "kubernetes"
    capabilities: ClassVar[Capabilities] = Capabilities(
        queued=True, batch=True, resize=True, extends=True, shares_files=False
    )
    OPTIONS: ClassVar[Mapping[str, OptionField]] = KUBERNETES_OPTIONS
    WAYS: ClassVar[Sequence[str]] = ("provision", "reach")

    def validate(self, spec: JobSpec) -> None:
        """Check names, settings, and that there is a cluster to ask; it is not asked."""
        plans = make_plans(spec, spec.options.get("namespace", DEFAULT_NAMESPACE))
        check_templates(spec, plans)
        check_renewal(spec)
        read_resources(spec)
        if STATE_ENV not in os.environ:  # a client inside needs no cluster but its own hosts
            choose_api(spec)

    # Asking

    def submit(self, request: Request) -> Handle:
        """Put what pods will need into Secrets, then ask the operator for the pods."""
        api = choose_api(request.spec, request.apply_id)
        namespace = request.spec.options.get("namespace") or api.config.namespace
        plans = make_plans(request.spec, namespace, request.apply_id)
        handle = make_handle(request, api, namespace, plans)
        # First of all: whatever fails from here on, the next one looks in the right place.
        save_place(registry.folder_of(request.apply_id), handle)
        if request.client_script:
            check_batch(request, plans)
        authority, maker = ensure_authority(request.apply_id), Maker(api, handle, request, plans)
        maker.make(authority, worker=pack_worker())
        if request.client_script:
            maker.make_client()
        return handle

    def resize(self, handle: Handle, spec: JobSpec) -> Handle:
        """Tell the operator another number of pods; those that stay are not touched."""
        api = self._api(handle)
        plans = make_plans(spec, handle["namespace"], handle["apply_id"])
        request = Request(spec=spec, apply_id=handle["apply_id"], keep=is_kept(api, handle))
        made = make_handle(request, api, handle["namespace"], plans)
        # The cluster is the same; its id is not shown where nobody answered just now.
        same = (
            ("client", "provision")
            if made["cluster"].get("uid")
            else ("client", "provision", "cluster")
        )
        resized = {**made, **{key: handle[key] for key in same if key in handle}}
        maker = Maker(api, resized, request, plans, met=is_met(api, handle))
        maker.resize(ensure_authority(handle["apply_id"], api, handle), worker=pack_worker())
        return resized

    def joined(self, handle: Handle, hosts: Sequence[str]) -> None:
        """Have pods that are made anew know that their job was used: they end with it when nobody comes."""
        if is_blind(handle) or not hosts:
            return
        # Where it cannot be noted, pods that come anew wait as the first ones did.
        with contextlib.suppress(MilkweedError, OSError):
            note_met(self._api(handle), handle)

    def keep(self, handle: Handle) -> None:
        """Have pods that are made anew outlive their client: it has recorded the job."""
        if not is_blind(handle):
            note_kept(self._api(handle), handle)

    # Another way, and more time

    def reroute(self, handle: Handle, spec: JobSpec) -> Handle:
        """The handle with this client's own way to pods; who may ask nobody has one way only."""
        return handle if is_blind(handle) else reroute(handle, spec)

    def renewal(self, handle: Handle, renew: str | None, look: Look | None = None) -> Renewal:
        """Whether hosts are to be given more time; there is never another allocation."""
        return judge_time((look or self.poll)(handle), renew) if renew else Renewal.NONE

    def renew(self, handle: Handle, spec: JobSpec) -> Handle:
        """Have the time of all hosts begin anew; they go on as they are."""
        give_time(self.controls(handle), spec.lifetime.time_limit_s)
        return handle

    def move(self, handle: Handle) -> Handle:
        """It is the same allocation."""
        return handle

    def retire(self, handle: Handle) -> None:
        """There is no other."""

    # Looking

    def _api(self, handle: Handle) -> AnyApi:
        if handle.get("provision"):
            endpoint = endpoint_of(handle["provision"])
            return AskedApi(endpoint, handle["namespace"], handle["apply_id"])
        api = reach_api(handle.get("context") or None, handle.get("kubeconfig"))
        check_same(api, handle)
        return api

    def find(self, apply_id: str) -> Handle | None:
        """Look for the mark that the job's objects carry: where they were asked for, or in this context."""
        known = load_place(registry.folder_of(apply_id))
        if known is not None and is_blind(known):
            return known
        if known is None:
            return find_handle(reach_api(), apply_id)
        if not any(mesh["made"] for mesh in known["meshes"].values()):
            return known
        api = self._api(known)
        for resource in (MESHES, SECRETS, JOBS):
            if list_objects(api, resource, known):
                return known
        return None

    def allocations(self) -> Mapping[str, str]:
        """Every job that carries our mark, as far as this user may look."""
        api = reach_api()
        # A batch client that is over stays, with its log, when its hosts are gone.
        found = [*find_marked(api, MESHES), *find_marked(api, JOBS)]
        return {
            part(item, "metadata", "labels")[JOB_LABEL]: part(item, "metadata", "annotations").get(
                NAME_NOTE, ""
            )
            for item in found
        }

    def glance(self, handle: Handle, *, fresh: bool = False) -> Status:
        """What the API server says of the pods; they are watched, so asking costs nothing."""
        del fresh
        return self._look(handle)[0]

    def poll(self, handle: Handle) -> Status:
        """What the API server says, and what the hosts' keepers say."""
        if is_blind(handle):
            return blind.poll(handle)
        status, pods = self._look(handle)
        if status.liveness is not Liveness.RUNNING:
            return status
        lost = {each.host: each for each in status.hosts}
        asked = self._ask(handle, [pod for pod in pods if pod.label not in lost])
        lost |= {
            pod.label: judge_pod(pod, answer)
            if isinstance(answer, str)
            else keepers.make_status(answer)
            for pod, answer in asked
        }
        hosts = self._add_last_words(handle, pods, [lost[pod.label] for pod in pods])
        times = describe_time([answer for _pod, answer in asked])
        return replace(status, hosts=hosts, reason=status.details.get(CLIENT, ""), details=times)

    def _look(self, handle: Handle) -> tuple[Status, list[Pod]]:
        """How a job is, and its pods; one that has ended is watched no longer."""
        status, pods = self._look_at(handle)
        if status.liveness is Liveness.ENDED:
            self._unwatch(handle)
        return status, pods

    def _look_at(self, handle: Handle) -> tuple[Status, list[Pod]]:
        if is_blind(handle):
            return blind.look(), []
        try:
            pods = self._pods(handle)
            client = read_client(self._api(handle), handle) if handle["client"] else ""
            if isinstance(client, Status):
                return client, []
        except UnreachableError as error:
            return Status(liveness=Liveness.UNKNOWN, reason=error.seen or error.what), []
        gone, pods = self._ask_operator(handle, pods)
        status = make_status(pods, gone, client)
        return replace(status, hosts=self._add_last_words(handle, pods, status.hosts)), pods

    def _add_last_words(
        self, handle: Handle, pods: Sequence[Pod], told: Sequence[HostStatus]
    ) -> tuple[HostStatus, ...]:
        return add_last_words(self._api(handle), pods, told) if told else ()

    def _ask_operator(self, handle: Handle, pods: list[Pod]) -> tuple[set[str], list[Pod]]:
        """Meshes without pods from whose objects none can come, and the pods with what is told of their meshes.

        Asked only while pods are waited for; what nobody can tell is not gone.
        """
        if not any(pod.mesh["made"] and not pod.running for pod in pods):
            return set(), pods
        try:
            told = read_meshes(self._api(handle), handle)
        except MilkweedError:
            return set(), pods
        lacking = {pod.mesh["name"] for pod in pods if pod.mesh["made"] and pod.leaving}
        known = [replace(pod, told=told.get(pod.mesh["name"], NOTHING)) for pod in pods]
        return lacking - told.keys(), known

    def _pods(self, handle: Handle) -> list[Pod]:
        return pods_in(self._api(handle), handle)

    def _ask(self, handle: Handle, pods: Sequence[Pod]) -> list[tuple[Pod, Answer | str]]:
        """Every host's own answer, or why there is none."""
        return ask_all(pods, functools.partial(ask_pod, self._api(handle), handle))

    def explain(self, handle: Handle, host: str) -> HostStatus:
        """What became of a host that no longer answers."""
        if is_blind(handle):
            return blind.explain_silence(host)
        for pod in self._pods(handle):
            if pod.label == host:
                told = judge_pod(pod, "its keeper does not answer")
                return self._add_last_words(handle, [pod], [told])[0]
        return HostStatus(host=host, state=HostState.UNKNOWN, reason="the job has no such host")

    def controls(self, handle: Handle) -> Sequence[str]:
        """Where the keepers take orders; pods of others have none."""
        if is_blind(handle):
            return [str(door) for door in blind.doors(handle)]
        api = self._api(handle)
        pods = [pod for pod in self._pods(handle) if pod.kept and pod.running]
        return [str(make_door(api, handle, pod)) for pod in pods]

    def adopted_labels(self, handle: Handle) -> Sequence[str]:
        """The hosts whose pods somebody else made."""
        return [
            f"{name}/{rank}"
            for name, mesh in handle["meshes"].items()
            if not mesh["kept"]
            for rank in range(mesh["hosts"])
        ]

    def adopted(self, handle: Handle) -> Sequence[Host]:
        """These hosts, once all of them take connections."""
        api = self._api(handle)
        pods = [pod for pod in self._pods(handle) if not pod.kept]
        return [make_host(api, handle, pod, answer) for pod, answer in self._ask(handle, pods)]

    def hosts(self, handle: Handle) -> Sequence[Host]:
        """The hosts, with the addresses their workers serve."""
        if is_blind(handle):
            return blind.hosts(handle)
        check_running(self.glance(handle, fresh=True))
        api = self._api(handle)
        return [
            make_host(api, handle, pod, answer)
            for pod, answer in self._ask(handle, self._pods(handle))
        ]

    def logs(self, handle: Handle, host: str | None, *, follow: bool) -> Iterator[LogLine]:
        """Ask each host's keeper for its log; `client` is a batch client, of which the cluster has it."""
        # A client is asked for in the cluster: hosts that have no name yet do not matter to it.
        ours = host == CLIENT and handle["client"] and not is_blind(handle)
        doors = {CLIENT: CLIENT} if ours else self._log_doors(handle)

        client = ClientLog(functools.partial(self._api, handle), handle, follow=follow)

        def alive() -> bool:
            ended = self.glance(handle).liveness is Liveness.ENDED
            if ended:
                client.note_end()
            return not ended

        with contextlib.closing(RemoteLog()) as remote, contextlib.closing(client):

            def read(path: str, offset: int) -> bytes:
                return client.read() if path == CLIENT else remote.read(path, offset)

            yield from follow_hosts(doors, host, follow=follow, alive=alive, read=read)

    def _log_doors(self, handle: Handle) -> dict[str, str]:
        if is_blind(handle):
            return {door.host: str(door) for door in blind.doors(handle)}
        api = self._api(handle)
        kept = [pod for pod in self._pods(handle) if pod.kept]
        doors = {pod.label: str(make_door(api, handle, pod)) for pod in kept}
        return {**doors, CLIENT: CLIENT} if handle["client"] else doors

    # Ending

    def cancel(self, handle: Handle) -> None:
        """Delete everything that carries the mark, and wait until it is gone; others' pods stay."""
        if is_blind(handle):
            blind.end(handle)
            return
        api = self._api(handle)
        if handle["client"] or any(mesh["made"] for mesh in handle["meshes"].values()):
            delete_objects(api, handle)
        self._unwatch(handle)

    def _unwatch(self, handle: Handle) -> None:
        api = None if is_blind(handle) else self._api(handle)
        for selector in selectors_of(handle).values():
            if isinstance(api, Api):
                cluster.forget(api, handle["namespace"], selector)

    def forget(self, apply_id: str) -> None:
        """Nothing of it is in the cluster: `find` has looked."""
        del apply_id
