"""Serving and batch captioning: the web page, the HTTP API, and `captioner batch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner_serving.demo import Demo

__all__ = ["gradio_demo"]


def gradio_demo(*captioners: Captioner, **limits: Any) -> Demo:
    """Return the page as a Gradio demo, with `launch()` and `mount_to(app, path)`.

    Args:
        captioners: the models; the bundled one by default.
        limits: fields of captioner_serving.server.config.ServerConfig, such as `max_upload`,
            `allowed_hosts` or `trusted_proxies`.

    Raises ConfigError: a field is unknown or out of range.
    """
    from captioner.captioner import Captioner
    from captioner.errors import ConfigError
    from captioner.shared.paths import sample_photos
    from captioner_serving.demo import Demo
    from captioner_serving.server.config import ServerConfig

    try:
        config = ServerConfig(**limits)
    except TypeError as error:
        raise ConfigError(f"gradio_demo: {error}") from error
    models = captioners or (Captioner.from_pretrained(max_pixels=config.max_pixels),)
    return Demo(*models, samples=sample_photos(), config=config)
