"""The page's uploads: a private folder, a capability for each file, gone within ten minutes.

A file belongs to the browser that uploaded it (by cookie) and to the first Gradio session that used
it. Whoever else names its path, by guess or by theft, gets nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["UploadStore"]


@dataclass(eq=False)
class _Entry:
    owner: str | None
    session: str | None
    until: float
    size: int
    used: bool


class UploadStore:
    """Files uploaded to the page.

    Args:
        keep: seconds that a file is kept.
        max_bytes: of all files; for a new one the oldest make way, those that nobody captioned
            first.
        folder: where; None makes one in the system's folder for temporary files.

    """

    def __init__(self, *, keep: float, max_bytes: int, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="captioner-"))  # readable by us only
        self._keep = keep
        self._max_bytes = max_bytes
        self._entries: dict[str, _Entry] = {}  # the oldest first
        self._lock = threading.Lock()  # files are saved in threads

    def save(self, name: str | None, data: bytes, *, owner: str | None, used: bool = False) -> str:
        """Write a file under a path that cannot be guessed; its own name is only decoration.

        Args:
            name: of the file, as its owner calls it.
            data: the file.
            owner: the browser that it comes from.
            used: it is captioned at once; other files count as used when a session claims them.

        """
        folder = self.folder / secrets.token_urlsafe(16)
        path = folder / _harmless(name)
        with self._lock:
            self._make_room(len(data))
            try:
                self._make_folder()
                folder.mkdir(mode=0o700)
                path.write_bytes(data)
            except OSError:  # half a file on a full disk would be in the way of the next
                shutil.rmtree(folder, ignore_errors=True)
                raise
            until = time.monotonic() + self._keep
            self._entries[str(path)] = _Entry(owner, None, until, len(data), used)
        return str(path)

    def claim(self, path: str, session: str | None) -> bool:
        """Whether a session may use a file; the first one that asks is the one."""
        entry = self._entries.get(path)
        if entry is None or not session or entry.until < time.monotonic():
            return False
        if entry.session is None:
            entry.session, entry.used = session, True
        return secrets.compare_digest(entry.session.encode(), session.encode())

    def owns(self, path: str, owner: str | None) -> bool:
        """Whether the file was uploaded by this browser."""
        entry = self._entries.get(path)
        if entry is None or entry.owner is None or not owner or entry.until < time.monotonic():
            return False
        return secrets.compare_digest(entry.owner.encode(), owner.encode())

    def sweep(self) -> None:
        """Delete what has been kept long enough, and whatever else has come into the folder."""
        now = time.monotonic()
        with self._lock:
            for path, entry in list(self._entries.items()):
                if entry.until < now:
                    del self._entries[path]
            known = {Path(path).parent for path in self._entries}
        old = time.time() - self._keep
        # Whoever clears the system's temporary folder may have taken ours: then nothing is left.
        for item in self.folder.iterdir() if self._is_ours() else ():
            with contextlib.suppress(OSError):
                if item not in known and os.lstat(item).st_mtime < old:
                    shutil.rmtree(item) if item.is_dir() else item.unlink()

    def _make_folder(self) -> None:
        """Make the folder anew if somebody has cleared it away.

        Raises:
            OSError: it cannot be made, or what lies there is somebody else's.

        """
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            if not self._is_ours():
                raise

    def _is_ours(self) -> bool:
        """Whether the folder is there and no link that others have put in its place."""
        try:
            found = os.lstat(self.folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()

    def _make_room(self, size: int) -> None:
        """Delete what has to go for a new file; the caller holds the lock."""
        used = sum(entry.size for entry in self._entries.values())
        unused = [path for path, entry in self._entries.items() if not entry.used]
        others = [path for path, entry in self._entries.items() if entry.used]
        for path in (*unused, *others):
            if used + size <= self._max_bytes:
                return
            used -= self._entries.pop(path).size
            shutil.rmtree(Path(path).parent, ignore_errors=True)

    def close(self) -> None:
        """Delete everything."""
        if self._is_ours():
            shutil.rmtree(self.folder, ignore_errors=True)


def _harmless(name: str | None) -> str:
    """Keep of a file's name what cannot mean a folder, an option or a device."""
    plain = re.sub(r"[^\w.-]+", "_", (name or "").replace("\\", "/").rsplit("/", 1)[-1])
    # File systems count bytes, 255 of them, and a character may have four.
    return plain.lstrip(".-").encode()[-160:].decode(errors="ignore") or "photo"
