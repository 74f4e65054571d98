"""The Hugging Face Hub: download and upload checkpoints named OWNER/MODEL or OWNER/MODEL@REVISION.

A repository holds captioner.safetensors, usually captioner.trust.safetensors, and a model card.
huggingface_hub is imported when a name is used, not before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from captioner.errors import CheckpointNotFoundError, ConfigError, OutputError

CHECKPOINT = "captioner.safetensors"
TRUST = "captioner.trust.safetensors"
CARD = "README.md"

_TIMEOUT = 5  # seconds
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.][\w./-]*)?", re.ASCII)
_WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")  # names of files, not models


def is_hub_name(name: str) -> bool:
    """Whether a name has the form of a model's name on the Hub.

    >>> is_hub_name("user/model@v1"), is_hub_name("runs/best.safetensors"), is_hub_name("./a/b")
    (True, False, False)
    """
    return bool(_NAME.fullmatch(name)) and not name.lower().endswith(_WEIGHTS)


def with_revision(path: str | os.PathLike[str] | None, revision: str) -> str:
    """Append "@REVISION" to the name of a model on the Hub, with or without the prefix "hf:".

    Raises ConfigError: the path is not a name on the Hub, or already has a revision.
    """
    name = "" if path is None else os.fspath(path)
    if "@" in name or not is_hub_name(name.partition("hf:")[2] or name):
        raise ConfigError(
            f"revision {revision}: {name or 'the bundled checkpoint'} is not a model on the "
            "Hugging Face Hub (OWNER/MODEL): leave the revision out"
        )
    return f"{name}@{revision}"


def repository_name(repository: str, branch: str | None = None) -> str:
    """Return "OWNER/MODEL", or "OWNER/MODEL@BRANCH".

    Raises ConfigError: the result is not a valid name on the Hub.
    """
    name = repository if branch is None else f"{repository}@{branch}"
    if "@" in repository or not is_hub_name(name):
        raise ConfigError(f"{name} is no name for a model on the Hub: use OWNER/MODEL")
    return name


def download_checkpoint(name: str) -> Path:
    """Download a checkpoint, and its trust file if there is one, as `download_files` does.

    Returns the checkpoint's path in the cache. Raises CheckpointNotFoundError.
    """
    path = download_files(name, [CHECKPOINT, TRUST]) / CHECKPOINT
    if not path.is_file():
        raise CheckpointNotFoundError(
            f"{name} has no {CHECKPOINT}: it is not a Captioner checkpoint (a model of "
            f"transformers is named hf:{name})."
        )
    return path


def download_files(name: str, patterns: Sequence[str]) -> Path:
    """Download files of a model into the local cache of the Hub, if they are missing or changed.

    If the Hub does not answer, the files in the cache are used.

    Args:
        name: OWNER/MODEL, or OWNER/MODEL@REVISION with a branch, tag or commit.
        patterns: patterns of file names, such as "*.json".

    Returns:
        The folder of the commit in the cache. Some of the files may be missing.

    Raises CheckpointNotFoundError: the model does not exist or is gated; or the Hub cannot be
        reached and the model is not in the cache.
    """
    from huggingface_hub import HfApi, errors, snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    repository, _, revision = name.partition("@")
    options: dict[str, Any] = {"revision": revision or None}
    refused = (
        errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError,
    )  # fmt: skip
    try:
        # snapshot_download falls back to the cache too, but has no timeout.
        HfApi().model_info(repository, timeout=_TIMEOUT, **options)
    except Exception as error:  # from httpx, hf_xet or huggingface_hub: no common base class
        if isinstance(error, refused) or _status([error]) == 401:
            raise _explain_download(name, error) from error
        options["local_files_only"] = True
    # A progress bar on a terminal only.
    options["tqdm_class"] = type(
        "Bar", (tqdm,), {"__init__": partialmethod(tqdm.__init__, disable=None)}
    )
    try:
        return Path(snapshot_download(repository, allow_patterns=[*patterns], **options))
    except Exception as error:
        raise _explain_download(name, error) from error


def _explain_download(name: str, error: Exception) -> CheckpointNotFoundError:
    from huggingface_hub import constants, errors

    repository, _, revision = name.partition("@")
    host, chain = urlsplit(constants.ENDPOINT).netloc, _causes(error)

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(link, kinds) for link in chain)

    is_unknown = has(errors.RepositoryNotFoundError, errors.HFValidationError)
    if has(errors.GatedRepoError) or (_status(chain) == 401 and not is_unknown):
        address = f"{constants.ENDPOINT}/{repository}"
        text = (
            f"is gated, or {host} rejects the token: accept its terms at {address}, then run "
            "`hf auth login`"
        )
    elif has(errors.RevisionNotFoundError):
        text = f"is not there: {repository} has no revision {revision or 'main'}"
    elif is_unknown:
        text = (
            f"is neither a local file or folder nor a model on {host}: check the name. A private "
            "model needs `hf auth login`"
        )
    elif has(errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError):
        text = (
            f"is neither a local file or folder nor in the local cache, and {host} cannot be "
            "reached: check the name, or go online once"
        )
    else:
        text = f"cannot be downloaded: {_reason(error)}"
    return CheckpointNotFoundError(f"{name} {text}")


def push_files(
    name: str, files: Mapping[str, Path | bytes], *, private: bool = False, replace_card: bool
) -> tuple[str, bool]:
    """Upload files in one commit; the repository and the branch are created if they do not exist.

    Args:
        name: OWNER/MODEL, or OWNER/MODEL@BRANCH.
        files: path or content of each file, by its name in the repository.
        private: create a private repository; an existing public one is refused.
        replace_card: whether an existing model card is replaced.

    Returns:
        The address of the repository, and whether its model card was kept.

    Raises OutputError: there is no token, the token may not write to the repository, or the Hub
        cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token

    repository, _, branch = name.partition("@")
    if get_token() is None:
        raise OutputError(
            f"{repository} cannot be written without a token: run `hf auth login`, or set HF_TOKEN."
        )
    api, revision, address = HfApi(), branch or None, f"{constants.ENDPOINT}/{repository}"
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        if private and not api.model_info(repository).private:
            raise OutputError(
                f"{repository} is public: make it private in its settings at "
                f"{address}/settings, or choose another name."
            )
        if branch:
            api.create_branch(repository, branch=branch, exist_ok=True)
        kept = not replace_card and api.file_exists(repository, CARD, revision=revision)
        operations = [
            CommitOperationAdd(path_in_repo=file, path_or_fileobj=content)
            for file, content in files.items()
            if not (kept and file == CARD)
        ]
        message = "Upload a Captioner checkpoint"
        api.create_commit(repository, operations, commit_message=message, revision=revision)
    except OutputError:
        raise
    except Exception as error:  # from httpx, hf_xet or huggingface_hub: no common base class
        raise OutputError(
            f"{address} cannot be written ({_reason(error)}): check the name and the connection, "
            "and run `hf auth login` with a token that may write there"
        ) from error
    return address + (f"/tree/{branch}" if branch else ""), kept


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error followed by its chain of causes."""
    chain = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    return chain


def _status(chain: Sequence[BaseException]) -> int | None:
    """Return the first HTTP status of a chain of errors of huggingface_hub."""
    statuses = (getattr(getattr(link, "response", None), "status_code", None) for link in chain)
    return next(filter(None, statuses), None)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
