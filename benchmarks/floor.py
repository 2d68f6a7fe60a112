"""
The floor: a picker that decides nothing, as cheap as one on grpc.aio can be.

It parses the JSON of a request and sends every one to the same endpoint: no scrapes, no scores, no
metrics, no log. What the real picker costs beyond it is what its work costs; what the floor costs
is the price of the transport. Its replies are made here and not with the picker's own builders, so
that the yardstick stays the same when those change.
"""

import gc
from typing import Any

import click
import grpc
import msgspec
import uvloop
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION = "x-gateway-destination-endpoint"

_PLAIN: dict[str, bytes] = {
    "request_headers": pb.ProcessingResponse(request_headers={}).SerializeToString(),
    "request_trailers": pb.ProcessingResponse(request_trailers={}).SerializeToString(),
    "response_headers": pb.ProcessingResponse(response_headers={}).SerializeToString(),
    "response_trailers": pb.ProcessingResponse(response_trailers={}).SerializeToString(),
}


def pick(phase: str, destination: str) -> bytes:
    """Return the reply that routes to the destination."""
    header = base_pb2.HeaderValue(key=DESTINATION, raw_value=destination.encode())
    option = base_pb2.HeaderValueOption(header=header)
    mutation = pb.HeaderMutation(set_headers=[option])
    common = pb.CommonResponse(header_mutation=mutation, clear_route_cache=True)
    reply: bytes = pb.ProcessingResponse(**{phase: {"response": common}}).SerializeToString()
    return reply


def piece(phase: str, data: bytes, *, end_of_stream: bool) -> bytes:
    """Return the full-duplex reply that lets a piece of a body pass."""
    streamed = pb.StreamedBodyResponse(body=data, end_of_stream=end_of_stream)
    common = pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=streamed))
    reply: bytes = pb.ProcessingResponse(**{phase: {"response": common}}).SerializeToString()
    return reply


class Floor:
    """Answers ext_proc streams, with the request's body buffered or full duplex."""

    def __init__(self, destination: str) -> None:
        self._pick_in_headers = pick("request_headers", destination)
        self._pick_in_body = pick("request_body", destination)

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """What to add to a grpc.aio server; replies are bytes already."""
        process: Any = grpc.stream_stream_rpc_method_handler(
            self._process, request_deserializer=pb.ProcessingRequest.FromString
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": process})

    async def _process(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        body = b""
        duplex = False
        while (message := await context.read()) is not grpc.aio.EOF:
            kind = message.WhichOneof("request")
            if kind == "request_body":
                body += message.request_body.body
                if message.request_body.end_of_stream:
                    for reply in self._decide(body, duplex=duplex):
                        await context.write(reply)
            elif kind == "response_body":
                part = message.response_body
                await context.write(piece(kind, part.body, end_of_stream=part.end_of_stream))
            elif kind == "request_headers" and message.protocol_config.request_body_mode == (
                processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
            ):
                duplex = True
            else:
                await context.write(_PLAIN[kind])

    def _decide(self, body: bytes, *, duplex: bool) -> list[bytes]:
        msgspec.json.decode(body)
        if not duplex:
            return [self._pick_in_body]
        return [self._pick_in_headers, piece("request_body", body, end_of_stream=True)]


async def serve(destination: str) -> None:
    """Listen on a free port, say which, and serve for ever."""
    floor = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    floor.add_generic_rpc_handlers((Floor(destination).handler,))
    port = floor.add_insecure_port("127.0.0.1:0")
    await floor.start()
    gc.collect()
    gc.freeze()
    click.echo(f"listening on {port}")
    await floor.wait_for_termination()


@click.command()
@click.option("--destination", required=True, metavar="HOST:PORT", help="Where all requests go.")
def main(destination: str) -> None:
    """Answer ext_proc streams on loopback until killed."""
    uvloop.run(serve(destination))


if __name__ == "__main__":
    main()
