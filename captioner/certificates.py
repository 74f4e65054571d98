"""Certificates of trusted authorities, with which downloads over https are verified."""

from __future__ import annotations

import os
import ssl
from functools import cache

import httpx


class CertificatesError(httpx.ConnectError):
    """The certificates cannot be loaded."""


@cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context of all downloads; loading the certificates is slow.

    Raises CertificatesError: SSL_CERT_FILE is not a file of certificates.
    """
    try:
        context = httpx.create_ssl_context()
    except OSError as error:
        invalid = isinstance(error, ssl.SSLError)
        reason = "it has no valid certificates" if invalid else error.strerror or error
        name = os.environ.get("SSL_CERT_FILE", "")
        raise CertificatesError(
            f"SSL_CERT_FILE={name} cannot be loaded ({reason}): correct or unset it"
        ) from error
    # httpcore sets the protocols for each connection, which threads that share a context must not
    # do. HTTP/1.1 needs none.
    context.set_alpn_protocols = lambda *_, **__: None  # type: ignore[method-assign]
    return context
