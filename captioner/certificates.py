"""Certificates of trusted authorities, with which downloads over https are verified."""

from __future__ import annotations

import os
import ssl
import threading

import httpx


class CertificatesError(httpx.ConnectError):
    """The certificates cannot be loaded."""


class _Thread(threading.local):
    context: ssl.SSLContext | None = None


_thread = _Thread()


def tls_context() -> ssl.SSLContext:
    """Return the TLS context of all downloads of a thread; loading the certificates is slow.

    Raises CertificatesError: SSL_CERT_FILE is not a file of certificates.
    """
    # Threads do not share it, because httpcore changes it for each connection.
    if _thread.context is None:
        _thread.context = _load()
    return _thread.context


def _load() -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        invalid = isinstance(error, ssl.SSLError)
        reason = "it has no valid certificates" if invalid else error.strerror or error
        name = os.environ.get("SSL_CERT_FILE", "")
        raise CertificatesError(
            f"SSL_CERT_FILE={name} cannot be loaded ({reason}): correct or unset it"
        ) from error
