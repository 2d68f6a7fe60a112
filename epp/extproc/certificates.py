"""
The certificate of the ext_proc port: the user's, or one made at start-up and signed by itself.

Gateways do not verify it (none of them can be told whom to trust), so what it buys is encryption
and the ALPN that some insist on. The key is ECDSA: NGINX Gateway Fabric opens a connection a
request.
"""

import datetime as dt
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epp.framework import ConfigError

_LIFETIME = dt.timedelta(days=3650)


def server_credentials(cert_path: Path | None) -> grpc.ServerCredentials:
    """
    Return credentials from `tls.crt` and `tls.key` in a folder, or self-signed ones.

    Raises ConfigError where the files cannot be read.
    """
    if cert_path is None:
        return grpc.ssl_server_credentials([self_signed()])
    pair = []
    for name in ("tls.key", "tls.crt"):
        try:
            pair.append((cert_path / name).read_bytes())
        except OSError as error:
            message = f"--cert-path: {cert_path / name}: {error.strerror}"
            raise ConfigError(message) from error
    _check(pair[0], pair[1], cert_path)
    return grpc.ssl_server_credentials([(pair[0], pair[1])])


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
