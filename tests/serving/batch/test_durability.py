"""Resume after a kill, a power cut or a torn file gives the files of an undisturbed run.

Settings and the log of sidecars are not compared.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from captioner import Captioner, OutputError
from captioner_serving.batch import BatchConfig, caption_batch
from tests.conftest import read_tree
from tests.serving.batch.conftest import draw

pytestmark = pytest.mark.slow

Tree = dict[str, bytes]  # the files below a folder, by their paths in it
Run = Callable[..., Iterator[dict[str, Any]]]

NOTES = (".run.json", ".written.jsonl", ".lock")
PLAIN: dict[str, Any] = dict.fromkeys(("sidecar", "min_score"))
OUTPUTS = pytest.mark.parametrize("output", ["c.jsonl", "c.csv"])


def write_tree(folder: Path, tree: Tree) -> None:
    """Make a folder hold these files, and no others."""
    for name, data in read_tree(folder).items():
        if tree.get(name) != data:
            (folder / name).unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for name, data in tree.items():
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


def made(tree: Tree) -> Tree:
    return {name: data for name, data in tree.items() if not name.endswith(NOTES)}


class Disk:
    """A folder as a power cut would leave it; used in place of os.fsync.

    A file lies where its folder had it when the folder was synced last, and holds what it held when
    it was synced itself. What came later may be there or not.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.killed: list[tuple[Tree, Tree]] = []  # what a kill could leave, and what was synced
        self.cut: list[tuple[str, Tree]] = []  # what was synced, and one file more, by its name
        self._real = os.fsync
        self._bytes: dict[int, bytes] = {}  # by inode
        self._names: dict[str, dict[str, int]] = {}  # inodes by folder and name
        self._held: list[int] = []  # open files, so that no inode is used twice
        for path in (root, *root.rglob("*")):
            self._note(path)

    def __call__(self, descriptor: int) -> None:
        self.look()
        self._real(descriptor)
        self._note(Path(f"/proc/self/fd/{descriptor}"))

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)

    def _note(self, path: Path) -> None:
        self._held.append(os.open(path, os.O_RDONLY))
        status = os.fstat(self._held[-1])
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                self._names[os.path.realpath(path)] = {one.name: one.inode() for one in entries}
        else:
            self._bytes[status.st_ino] = path.read_bytes()

    def synced(self) -> Tree:
        """Return the files that are certainly on the disk."""
        tree, folders = {}, [str(self.root)]
        while folders:
            folder = folders.pop()
            for name, inode in self._names.get(folder, {}).items():
                path = os.path.join(folder, name)  # noqa: PTH118
                if os.path.isdir(path):  # noqa: PTH112
                    folders.append(path)
                else:
                    tree[os.path.relpath(path, self.root)] = self._bytes.get(inode, b"")
        return tree

    def look(self) -> None:
        """Record the states that a power cut could leave now."""
        now, synced = read_tree(self.root), self.synced()
        if now not in (before for before, _ in self.killed):
            self.killed.append((now, synced))
        for name in (name for name in now if now[name] != synced.get(name)):
            if (state := (name, {**synced, name: now[name]})) not in self.cut:
                self.cut.append(state)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def run(root: Path, tiny: Captioner) -> Run:
    """Caption root/photos (two, two that are unsure, one that is broken) into root/OUTPUT."""
    (root / "photos").mkdir()
    drawn = sorted(map(draw, range(4)), key=lambda each: -tiny.caption(each).score)
    for number, picture in zip((0, 3, 1, 2), drawn, strict=True):
        picture.save(root / f"photos/p{number}.jpg", "PNG")  # which loses nothing
    (root / "photos/bad.jpg").write_bytes(b"no photo")
    scores = sorted(tiny.caption(path).score for path in root.glob("photos/p*"))
    config = BatchConfig(
        batch_size=1, workers=1, sidecar="txt", min_score=(scores[1] + scores[2]) / 2
    )

    def caption(output: str, **options: Any) -> Iterator[dict[str, Any]]:
        return caption_batch(
            root / "photos", output=root / output, captioner=tiny, config=replace(config, **options)
        )

    return caption


@pytest.fixture(scope="module")
def watch(run: Run, root: Path) -> Iterator[Callable[[str], tuple[Disk, Tree]]]:
    """Run to the end, once: what could be left at each fsync, and what there is at last."""
    begin, watched = read_tree(root), {}

    def watch(output: str) -> tuple[Disk, Tree]:
        if output not in watched:
            write_tree(root, begin)
            disk = Disk(root)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fsync", disk)
                for record in run(output):
                    check_synced(disk.synced(), record, output)
            disk.look()
            watched[output] = disk, read_tree(root)
        write_tree(root, watched[output][1])
        return watched[output]

    yield watch
    for disk, _ in watched.values():
        disk.close()


Watch = Callable[[str], tuple[Disk, Tree]]


def check_synced(synced: Tree, record: dict[str, Any], output: str) -> None:
    """A yielded record is synced to the disk, with its sidecar."""
    lines = output if output.endswith(".jsonl") else f"{output}.journal.jsonl"
    names = (lines, f"{output}.errors.jsonl")
    (name,) = (n for n in names if record in map(json.loads, synced.get(n, b"").splitlines()))
    assert (name == names[1]) == ("error" in record)
    if not record.keys() & {"error", "review"}:
        stem = Path(record["image"]).stem
        assert synced[f"photos/{stem}.txt"].decode() == record["caption"] + "\n"


def check_gone_on(run: Run, root: Path, output: str, state: Tree, wanted: Tree) -> None:
    """Resuming from this state gives the files of an undisturbed run."""
    write_tree(root, state)
    list(run(output))
    assert made(read_tree(root)) == made(wanted)


@OUTPUTS
def test_a_record_counts_when_it_and_what_belongs_to_it_are_synced(
    run: Run, watch: Watch, output: str
) -> None:
    """The synced lines of the logs are enough to remove all written files."""
    disk, wanted = watch(output)
    assert made(disk.synced()) == made(wanted)
    write_tree(disk.root, disk.synced())
    list(run(output, restart=True, **PLAIN))
    beside = (name for name in read_tree(disk.root) if name.startswith("photos/"))
    assert {Path(name).suffix for name in beside} == {".jpg"}


def test_a_killed_run_leaves_no_part_of_a_file(run: Run, watch: Watch) -> None:
    """The next run removes temporary files of sidecar and output."""
    disk, wanted = watch("c.csv")
    parts: dict[Path, Tree] = {}
    for state, _ in disk.killed:
        for name in (name for name in state if name.endswith(".part")):
            parts.setdefault(Path(name).parent, state)
    assert len(parts) == 2
    for state in parts.values():
        check_gone_on(run, disk.root, "c.csv", state, wanted)
        write_tree(disk.root, state)
        list(run("c.csv", restart=True, **PLAIN))
        assert not list(disk.root.rglob("*.part"))


@OUTPUTS
def test_a_kill_or_a_power_cut_at_every_step(run: Run, watch: Watch, output: str) -> None:
    disk, wanted = watch(output)
    assert len([name for name, _ in disk.cut if "/" not in name]) > 9  # lines ahead of all else
    for state in (*(now for now, _ in disk.killed), *(state for _, state in disk.cut)):
        check_gone_on(run, disk.root, output, state, wanted)


def test_a_file_of_lines_that_is_cut_anywhere(run: Run, watch: Watch) -> None:
    """The run is completed, or refused without changes.

    The run was killed, or has ended. A tail that was never synced is no reason to refuse. A .csv
    has a journal in the format of a .jsonl.
    """
    output = "c.csv"
    disk, wanted = watch(output)
    lines = [name for name in made(wanted) if "/" not in name and name.endswith(".jsonl")]
    killed = next(each for each in disk.killed if all(each[0].get(n) == wanted[n] for n in lines))
    assert killed[0] != killed[1]
    for state, synced in (killed, (wanted, wanted)):
        for name in (name for name in state if "/" not in name):
            for end in range(0, len(state[name]), 97):
                torn = {**state, name: state[name][:end]}
                try:
                    check_gone_on(run, disk.root, output, torn, wanted)
                except OutputError:
                    kept = {name: data for name, data in made(torn).items() if data}
                    assert kept.items() <= read_tree(disk.root).items()
                    if not name.endswith(".run.json"):  # which is replaced: no crash cuts it
                        assert end < len(synced.get(name, b"")), (name, end)
                else:
                    if name.endswith(NOTES):  # to which the run has added
                        assert list(run(output)) == []
