"""
gRPC servers on their ports: message limits, bursts, TLS, and addresses.
"""

import socket

import grpc

from epp.framework import ConfigError

MAX_PENDING_STREAMS = 100_000
"""Beyond its default of 1,000 gRPC rejects new streams at random: a burst is no overload."""


def server(max_request_bytes: int) -> grpc.aio.Server:
    """Return a server that takes messages of that size and bursts of streams."""
    # One BUFFERED message carries a whole body: beyond our own limit the client is to get a 413, so
    # gRPC's limit, which answers with a bare error, lies well above it.
    largest = min(2 * max_request_bytes + (64 << 20), (1 << 31) - 1)
    return grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", largest),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.server.max_pending_requests", MAX_PENDING_STREAMS),
            ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_STREAMS + 1),
        ]
    )


async def listen(
    server: grpc.aio.Server, address: str, port: int, credentials: grpc.ServerCredentials | None
) -> int:
    """
    Start a server on an address, over TLS where there are credentials; return its port.

    Raises ConfigError where the port is taken or the address is not this machine's.
    """
    host = f"[{address}]" if ":" in address else address
    try:
        if credentials is None:
            bound = server.add_insecure_port(f"{host}:{port}")
        else:
            bound = server.add_secure_port(f"{host}:{port}", credentials)
    except RuntimeError as error:
        message = f"cannot listen on {host}:{port}: is the port taken, or the address not ours?"
        raise ConfigError(message) from error
    await server.start()
    return bound


def any_address() -> str:
    """Return the address that stands for all of this machine's, IPv4 and IPv6."""
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
