#!/usr/bin/env python3
"""Cluster DNS for tests, with the standard library alone.

Answers A queries for services, headless services and the pods of a StatefulSet
(svc.ns.svc.cluster.local, pod-0.svc.ns.svc.cluster.local); every other name does not exist.

usage: dns.py BIND_IP API_HOST:PORT CA CERTIFICATE KEY
"""

import http.client
import json
import socket
import ssl
import struct
import sys
import threading
import time

Objects = dict[tuple[str, str], dict]


class Zone:
    """The names, rebuilt whenever a Service or an EndpointSlice changes."""

    def __init__(self) -> None:
        self.services: Objects = {}
        self.slices: Objects = {}
        self.names: dict[str, list[str]] = {}
        self.lock = threading.Lock()

    def rebuild(self) -> None:
        names: dict[str, list[str]] = {}

        def name(*labels: str) -> list[str]:
            return names.setdefault(".".join(labels).lower() + ".svc.cluster.local", [])

        for (namespace, service), object in self.services.items():
            address = object["spec"].get("clusterIP")
            name(service, namespace).extend(
                [address] if address and address != "None" else []
            )
        for (namespace, _), object in self.slices.items():
            service = (
                object["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            )
            owner = self.services.get((namespace, service))
            if not owner or owner["spec"].get("clusterIP") != "None":
                continue
            for endpoint in object.get("endpoints") or []:
                if endpoint.get("conditions", {}).get("ready") is False:
                    continue
                name(service, namespace).extend(endpoint["addresses"])
                if endpoint.get("hostname"):
                    name(endpoint["hostname"], service, namespace).extend(
                        endpoint["addresses"]
                    )
        self.names = names

    def watch(
        self, server: str, tls: ssl.SSLContext, path: str, store: Objects
    ) -> None:
        while True:
            try:
                api = http.client.HTTPSConnection(server, context=tls, timeout=3600)
                api.request("GET", path)
                listed = json.load(api.getresponse())
                with self.lock:
                    store.clear()
                    store.update((key(object), object) for object in listed["items"])
                    self.rebuild()
                version = listed["metadata"]["resourceVersion"]
                api.request("GET", f"{path}?watch=1&resourceVersion={version}")
                for line in api.getresponse():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    with self.lock:
                        if event["type"] == "DELETED":
                            store.pop(key(event["object"]), None)
                        else:
                            store[key(event["object"])] = event["object"]
                        self.rebuild()
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                print("watch", path, repr(error), flush=True)
                time.sleep(0.5)

    def answer(self, query: bytes) -> bytes:
        at, labels = 12, []
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode())
            at += length + 1
        (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
        addresses = self.names.get(".".join(labels).lower())
        records = [
            b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04"
            + socket.inet_aton(address)
            for address in (addresses or [] if kind == 1 else [])
        ]
        flags = 0x8580 | (3 if addresses is None else 0)
        header = query[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
        return header + query[12 : at + 5] + b"".join(records)


def key(object: dict) -> tuple[str, str]:
    return object["metadata"]["namespace"], object["metadata"]["name"]


def start(function, *args) -> None:
    threading.Thread(target=function, args=args, daemon=True).start()


def serve_tcp(zone: Zone, bind: str) -> None:
    def one(connection: socket.socket) -> None:
        with connection:
            (length,) = struct.unpack(">H", connection.recv(2))
            reply = zone.answer(connection.recv(length))
            connection.sendall(struct.pack(">H", len(reply)) + reply)

    with socket.create_server((bind, 53)) as server:
        while True:
            start(one, server.accept()[0])


def serve_udp(zone: Zone, bind: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((bind, 53))
        while True:
            query, client = server.recvfrom(4096)
            try:
                server.sendto(zone.answer(query), client)
            except (OSError, ValueError, IndexError, struct.error) as error:
                print("query", repr(error), flush=True)


def main(bind: str, server: str, ca: str, certificate: str, private_key: str) -> None:
    tls = ssl.create_default_context(cafile=ca)
    tls.load_cert_chain(certificate, private_key)
    zone = Zone()
    start(zone.watch, server, tls, "/api/v1/services", zone.services)
    start(
        zone.watch, server, tls, "/apis/discovery.k8s.io/v1/endpointslices", zone.slices
    )
    start(serve_tcp, zone, bind)
    serve_udp(zone, bind)


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
