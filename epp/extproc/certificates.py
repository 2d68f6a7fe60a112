"""
The certificate of the ext_proc port: the user's, or one made at start-up and signed by itself.

Gateways do not verify it (none of them can be told whom to trust), so what it buys is encryption
and the ALPN that some insist on. The key is ECDSA: NGINX Gateway Fabric opens a connection a
request.
"""

import contextlib
import datetime as dt
import ssl
import tempfile
from pathlib import Path
from typing import Any

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epp.framework import ConfigError

_NAMES = ("tls.key", "tls.crt")
_log = structlog.get_logger("epp.extproc")
_LIFETIME = dt.timedelta(days=3650)


class Certificate:
    """
    The pair that is served: read again when its files change, for the connections made from then.

    A pair that cannot be used, half written perhaps, is looked at again later; the earlier one is
    served meanwhile.
    """

    def __init__(self, folder: Path | None) -> None:
        """
        Take `tls.crt` and `tls.key` of a folder, or a self-signed pair where there is none.

        Raises ConfigError where the files cannot be read, or do not belong together.
        """
        self._folder = folder
        self._stamp = self._files()
        self._pair = self_signed() if folder is None else _read(folder)
        self._context: ssl.SSLContext | None = None

    def changed(self) -> bool:
        """Return whether the pair has changed since this was last asked, and take the new one."""
        if self._folder is None or (stamp := self._files()) == self._stamp:
            return False
        try:
            pair = _read(self._folder)
            self._context = _server_context(*pair)
        except ConfigError as error:
            _log.warning("certificate not taken", error=str(error))
            return False
        self._pair, self._stamp = pair, stamp
        _log.info("certificate taken")
        return True

    def _files(self) -> list[object]:
        """What tells whether files were changed or exchanged."""
        found: list[object] = []
        if self._folder is not None:
            for name in _NAMES:
                with contextlib.suppress(OSError):
                    status = (self._folder / name).stat()
                    found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return found

    def server_context(self) -> ssl.SSLContext:
        """
        Return a context that serves the pair of now over HTTP/2, with TLS 1.2 or later.

        Raises ConfigError where OpenSSL refuses the pair.
        """
        if self._context is None:
            self._context = _server_context(*self._pair)
        return self._context

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a gRPC server, which looks at each handshake."""

        def fetch() -> Any:  # None stands for no change, which the stubs do not know
            return self._grpc_pair() if self.changed() else None

        return grpc.dynamic_ssl_server_credentials(self._grpc_pair(), fetch)

    def _grpc_pair(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([self._pair])


def _server_context(key: bytes, certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory(prefix="epp-tls-") as place:  # only its owner may read it
        for name, content in zip(_NAMES, (key, certificate), strict=True):
            (Path(place) / name).write_bytes(content)
        try:
            context.load_cert_chain(Path(place) / "tls.crt", Path(place) / "tls.key")
        except ssl.SSLError as error:
            message = f"--cert-path: OpenSSL does not take tls.crt with tls.key: {error.reason}"
            raise ConfigError(message) from error
    return context


def _read(folder: Path) -> tuple[bytes, bytes]:
    pair = []
    for name in _NAMES:
        try:
            pair.append((folder / name).read_bytes())
        except OSError as error:
            message = f"--cert-path: {folder / name}: {error.strerror}"
            raise ConfigError(message) from error
    _check(pair[0], pair[1], folder)
    return pair[0], pair[1]


def self_signed() -> tuple[bytes, bytes]:
    """Return a new private key and its certificate, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "endpoint-picker")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("endpoint-picker")]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem, certificate.public_bytes(serialization.Encoding.PEM)


def _check(key: bytes, certificate: bytes, place: Path) -> None:
    """Refuse what gRPC would only fail on at the first connection."""
    try:
        private = serialization.load_pem_private_key(key, password=None)
        public = x509.load_pem_x509_certificate(certificate).public_key()
    except (ValueError, TypeError) as error:
        message = f"--cert-path: {place}: tls.key or tls.crt is no PEM that can be read"
        raise ConfigError(message) from error
    if private.public_key() != public:
        message = f"--cert-path: {place}: tls.key does not belong to tls.crt"
        raise ConfigError(message)
