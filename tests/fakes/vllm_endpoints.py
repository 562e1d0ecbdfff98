"""What a model server can be asked, how a path can be spelt, and what the server's own log says was asked."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import httpx

from components.core.processes import wait_until

ACCESS = re.compile(r'"([A-Z]+) (\S+) HTTP/')
MARK = "/health?nothing-came-before-this"


class AccessLog:
    """Requests of a server from now on, by its own record."""

    def __init__(self, url: str, log: Path) -> None:
        """`log`: where the server writes a line a request."""
        self._url, self._log, self._begins = url, log, log.stat().st_size

    def seen(self) -> list[tuple[str, str]]:
        """Method and target of each, in order; a request of ours tells that all before it are there."""
        httpx.get(f"{self._url}{MARK}", timeout=30, trust_env=False)
        assert wait_until(lambda: MARK in self._new(), 10.0, every=0.05)
        return [found for found in ACCESS.findall(self._new()) if found[1] != MARK]

    def _new(self) -> str:
        with self._log.open("rb") as stream:
            stream.seek(self._begins)
            return stream.read().decode(errors="replace")


def routes_of(url: str) -> set[str]:
    """The paths of a server's own OpenAPI document, parameters filled in."""
    told = httpx.get(f"{url}/openapi.json", timeout=30).json()["paths"]
    return {re.sub(r"{[^}]*}", "x", path) for path in told}


def spellings(path: str) -> list[str]:
    """One path, spelt in the ways that proxies and servers read differently."""
    word = path.lstrip("/")
    return [
        f"//{word}", f"/./{word}", f"/%2e/{word}", f"/x/../{word}", f"/x/%2e%2e/{word}", f"/..;/{word}", f"/;{path}",
        f"{path}/", f"{path}//", f"{path};x", f"{path}%20", f"{path}%2f", f"/%2f{word}", path.upper(), path.title(),
        f"/v1/completions/..{path}", f"/v1/completions/..;{path}", f"/v1/completions/%2e%2e/%2e%2e{path}",
        f"/v1/completions%2f..%2f..%2f{word}", f"/v1/completions/%252e%252e{path}", f"/v1/completions\\..\\{word}",
        f"/v1/completions%00{path}", f"/v1/models{path}", f"http://other{path}",
        "/" + "".join(f"%{ord(letter):02x}" for letter in word),
    ]  # fmt: skip


def raw_status(port: int, method: str, target: str) -> int:
    """The status of a request whose target is sent byte by byte."""
    head = f"{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head.encode())
        return int(connection.recv(65536).split()[1])
