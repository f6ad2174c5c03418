"""The only port of a server that is open to others: it passes what couriers need, and refuses everything else.

A SuperLink answers anyone who reaches it: a stranger can register a key, submit a run, and so execute code. This
gateway stands in front of it. It passes nine calls of the Fleet API, up to a size, and no other method or path. It
runs in a process of its own. Each line on stdout is an event in JSON.
"""

import argparse
import asyncio.sslproto
import base64
import hashlib
import json
import socket
import ssl
import time
from typing import Any

import httpx
import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

ALLOWED = {
    f"/v1/fleet/{call}"
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
}
"""What a courier calls. Registering a key and fetching a bundle are not among them."""
KEPT = ("content-type", "accept", "flwr-public-key", "flwr-signature", "flwr-timestamp")
"""Headers that are passed on."""
LIMIT = 16 << 20
"""Largest body, in bytes. Flower sends larger content in parts of 5 MB."""
NOT_ACTIVATED = "Failed to activate SuperNode."
"""What Flower says about a key that it does not know, or that is connected already."""
QUIET = 60.0
"""Seconds in which the same refusal of the same address is not told again."""


class Teller:
    """Writes events to stdout, without repeating itself."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], float] = {}

    def refused(self, peer: str, why: str) -> None:
        """Tell that a request was refused."""
        now = time.monotonic()
        self._told = {each: at for each, at in self._told.items() if now - at < QUIET}
        if (peer, why) not in self._told and len(self._told) < 1000:
            self._told[peer, why] = now
            self.tell("refused", peer=peer, text=f"refused {peer}: {why}")

    def tell(self, event: str, **values: Any) -> None:
        """Tell an event."""
        print(json.dumps({"event": event, **values}), flush=True)


class Gateway:
    """An ASGI application that passes requests to the SuperLink."""

    def __init__(self, upstream: str, ca: str, teller: Teller) -> None:
        self._upstream, self._teller = upstream, teller
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        context = ssl.create_default_context(cafile=ca)
        self._client = httpx.AsyncClient(verify=context, timeout=60.0, limits=limits, trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method != "POST" or request.url.path not in ALLOWED:
            if request.url.path == "/":  # a courier that looks whether this is a server with or without TLS
                return PlainTextResponse("a server of Coterie, for its sites only", 403)
            return self._refuse(request, 403, f"{request.method} {request.url.path[:80]} is not for sites")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > LIMIT:
                return self._refuse(request, 413, f"a body of more than {LIMIT} bytes")
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        try:
            answer = await self._client.post(self._upstream + request.url.path, content=bytes(body), headers=headers)
        except httpx.ConnectError:
            return PlainTextResponse("the server is starting", 503)
        except httpx.TransportError:
            return PlainTextResponse("the server was stopped in the middle of this call", 502)
        if 400 <= answer.status_code < 500 and request.url.path != "/v1/fleet/deactivate-node":
            self._teller.refused(address(request), f"{reason(answer)} (key {fingerprint(request)})")
        kind = answer.headers.get("content-type", "application/octet-stream")
        return Response(answer.content, answer.status_code, media_type=kind)

    def _refuse(self, request: Request, status: int, why: str) -> Response:
        self._teller.refused(address(request), why)
        return PlainTextResponse(why, status, {"connection": "close"})


def address(request: Request) -> str:
    """Return the address from which a request came."""
    return request.client.host if request.client else "unknown"


def fingerprint(request: Request) -> str:
    """Return the fingerprint of the key that signed a request, as `coterie sites list` shows it."""
    try:
        key = load_pem_public_key(base64.b64decode(request.headers["flwr-public-key"], validate=True))
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (KeyError, ValueError, UnsupportedAlgorithm):
        return "missing"
    return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(line.split()[1])).digest()).decode().rstrip("=")


def reason(answer: httpx.Response) -> str:
    """Return why the SuperLink refused a request."""
    try:
        why = str(answer.json()["detail"])[:200]
        return "its key is not on the list of sites, or another courier uses it" if why == NOT_ACTIVATED else why
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"


def tell_failed_handshakes(teller: Teller) -> None:
    """Tell about connections that end before TLS is set up. Python itself says nothing about them."""
    protocol: Any = asyncio.sslproto.SSLProtocol
    complete = protocol._on_handshake_complete

    def on_complete(self: Any, error: BaseException | None) -> None:
        if isinstance(error, ssl.SSLError):
            peer = self._transport.get_extra_info("peername")
            teller.refused(str(peer[0]) if peer else "unknown", f"no TLS connection: {error.reason or error}")
        complete(self, error)

    protocol._on_handshake_complete = on_complete


class Server(uvicorn.Server):
    """A server that tells when it listens."""

    def __init__(self, config: uvicorn.Config, teller: Teller) -> None:
        super().__init__(config)
        self._teller = teller

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        self._teller.tell("listening")


def main() -> None:
    """Run the gateway on a socket that the parent process has opened."""
    parser = argparse.ArgumentParser(description="The only open port of a Coterie server.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--upstream-ca", required=True)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    args = parser.parse_args()
    teller = Teller()
    tell_failed_handshakes(teller)
    config = uvicorn.Config(
        Gateway(args.upstream, args.upstream_ca, teller),
        loop="asyncio",
        lifespan="off",
        log_level="critical",
        access_log=False,
        server_header=False,
        ws="none",
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        ssl_certfile=args.certificate,
        ssl_keyfile=args.key,
    )
    with socket.socket(fileno=args.fd) as listening:
        Server(config, teller).run([listening])


if __name__ == "__main__":
    main()
