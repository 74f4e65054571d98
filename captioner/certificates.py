"""Certificates of trusted authorities, with which downloads over https are verified."""

from __future__ import annotations

import os
import ssl
from functools import cache

import httpx

__all__ = ["CertificatesError", "tls_context"]


class CertificatesError(httpx.ConnectError):
    """The certificates cannot be loaded."""


@cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS settings of a client; the certificates are loaded once, which takes 50 ms.

    Raises CertificatesError: SSL_CERT_FILE is not a file of certificates.
    """
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        name = os.environ.get("SSL_CERT_FILE", "")
        reason = error.strerror or error
        raise CertificatesError(f"SSL_CERT_FILE={name} cannot be loaded: {reason}") from error
