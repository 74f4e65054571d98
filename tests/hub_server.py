"""A small Hugging Face Hub: what huggingface_hub needs to download and upload models.

Repositories have branches and commits. TOKEN belongs to the account "user".
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_user"
Files = dict[str, bytes]


@dataclass
class Repository:
    private: bool = False
    gated: bool = False
    branches: dict[str, str] = field(default_factory=dict)  # and tags
    commits: dict[str, Files] = field(default_factory=dict)

    def commit(self, files: Files, branch: str = "main") -> str:
        """Add files to a branch, and return the commit."""
        whole = self.files(branch) | files
        commit = hashlib.sha1(repr((len(self.commits), sorted(whole))).encode()).hexdigest()
        self.commits[commit], self.branches[branch] = whole, commit
        return commit

    def files(self, revision: str) -> Files:
        return self.commits.get(self.branches.get(revision, revision), {})


class Hub(ThreadingHTTPServer):
    """Serves repositories; `requests` lists method and path of every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, files: Files, **options: bool) -> Repository:
        """Add a repository with one commit."""
        self.repositories[name] = repository = Repository(**options)
        repository.commit(files)
        return repository


@contextmanager
def running_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


class _RefusedError(Exception):
    def __init__(self, status: int, code: str = "", message: str = "", body: bytes = b"{}") -> None:
        self.status, self.body = status, body
        self.headers = {"X-Error-Code": code, "X-Error-Message": message}


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    _ROUTES: ClassVar[dict[str, str]] = {
        r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?": "info",
        r"/api/models/([^/]+/[^/]+)/tree/(.+)": "tree",
        r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)": "file",
        r"/api/repos/create": "create",
        r"/api/validate-yaml": "validate",
        r"/api/models/([^/]+/[^/]+)/branch/(.+)": "branch",
        r"/api/models/([^/]+/[^/]+)/preupload/(.+)": "preupload",
        r"/api/models/([^/]+/[^/]+)/commit/(.+)": "commit",
    }

    def log_message(self, *_: object) -> None: ...

    def _dispatch(self) -> None:
        path = urlsplit(self.path).path
        self.server.requests.append(f"{self.command} {path}")
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        for pattern, name in self._ROUTES.items():
            if match := re.fullmatch(pattern, path):
                parts = [None if part is None else unquote(part) for part in match.groups()]
                try:
                    self._answer(200, *getattr(self, name)(*parts))
                except _RefusedError as refusal:
                    self._answer(refusal.status, refusal.body, refusal.headers)
                return
        self._answer(404, b"{}", {})

    do_GET = do_HEAD = do_POST = _dispatch  # noqa: N815

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _find(self, name: str, revision: str | None = None) -> tuple[Repository, str]:
        """Return a repository that the client may see, and a commit of it."""
        known = self._is_user()
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and not known):
            raise _RefusedError(404 if known else 401, "RepoNotFound")
        revision = revision or "main"
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            raise _RefusedError(404, "RevisionNotFound")
        return repository, commit

    def _is_user(self) -> bool:
        given = self.headers.get("Authorization")
        if given not in (None, f"Bearer {TOKEN}"):
            raise _RefusedError(401, message="Invalid credentials in Authorization header")
        return given is not None

    def _check_writer(self, owner: str) -> None:
        if not self._is_user():
            raise _RefusedError(401)
        if owner != "user":
            raise _RefusedError(403)

    def info(self, name: str, revision: str | None) -> tuple[bytes, dict[str, str]]:
        repository, commit = self._find(name, revision)
        siblings = [{"rfilename": file} for file in repository.commits[commit]]
        about = {"id": name, "sha": commit, "private": repository.private, "siblings": siblings}
        return _json(about)

    def tree(self, name: str, revision: str) -> tuple[bytes, dict[str, str]]:
        repository, commit = self._find(name, revision)
        return _json(
            [
                {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
                for path, content in repository.commits[commit].items()
            ]
        )

    def file(self, name: str, revision: str, file: str) -> tuple[bytes, dict[str, str]]:
        repository, commit = self._find(name, revision)
        if repository.gated:
            raise _RefusedError(403, "GatedRepo")
        if (content := repository.commits[commit].get(file)) is None:
            raise _RefusedError(404, "EntryNotFound")
        digest = hashlib.sha256(content).hexdigest()
        return content, {"ETag": f'"{digest}"', "X-Repo-Commit": commit}

    def create(self) -> tuple[bytes, dict[str, str]]:
        wanted: dict[str, Any] = json.loads(self.body)
        owner = wanted.get("organization") or "user"
        name = f"{owner}/{wanted['name']}"
        self._check_writer(owner)
        answer = _json({"url": f"{self.server.url}/{name}"})
        if name in self.server.repositories:
            raise _RefusedError(409, body=answer[0])
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        self.server.add(name, {".gitattributes": b""}, private=private)
        return answer

    def validate(self) -> tuple[bytes, dict[str, str]]:
        return _json({"errors": [], "warnings": []})

    def branch(self, name: str, branch: str) -> tuple[bytes, dict[str, str]]:
        self._check_writer(name.partition("/")[0])
        repository, commit = self._find(name)
        if branch in repository.branches:
            raise _RefusedError(409)
        repository.branches[branch] = commit
        return _json({})

    def preupload(self, name: str, revision: str) -> tuple[bytes, dict[str, str]]:
        self._find(name, revision)
        mode = {"uploadMode": "regular", "shouldIgnore": False}
        return _json({"files": [{**file, **mode} for file in json.loads(self.body)["files"]]})

    def commit(self, name: str, revision: str) -> tuple[bytes, dict[str, str]]:
        self._check_writer(name.partition("/")[0])
        repository, _ = self._find(name, revision)
        entries = map(json.loads, self.body.splitlines())
        files = [entry["value"] for entry in entries if entry["key"] == "file"]
        contents = {file["path"]: base64.b64decode(file["content"]) for file in files}
        commit = repository.commit(contents, revision)
        return _json(
            {"commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit}
        )


def _json(value: object) -> tuple[bytes, dict[str, str]]:
    return json.dumps(value).encode(), {"Content-Type": "application/json"}
