"""Write one data set of photos with published splits in the layouts that people publish.

A layout takes the root, the names of the splits, a level of folders above them and the suffix of
tables. It returns the arguments of `captioner prepare`.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import pandas
from PIL import Image

Names = Mapping[str, str]
"""What the layout calls train, val and test."""

Rows = list[tuple[str, str, str]]
"""File name, caption and published split (ours) of each photo."""

ROWS: Rows = [
    (f"{n}.jpg", f"a scene with {n} dogs", split)
    for n, split in enumerate(["train"] * 12 + ["val"] * 5 + ["test"] * 4)
]


@cache
def photo(name: str) -> bytes:
    """Return a small JPEG; no two names have the same."""
    picture = Image.new("RGB", (24, 16), (40, 90, 200))
    picture.save(data := io.BytesIO(), format="JPEG", comment=name.encode())
    return data.getvalue()


def write_photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(photo(path.name))


def write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    """Add files to a tar file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "a") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _tables(
    root: Path, names: Names, level: str, suffix: str,
    *, photos: str, table: str, columns: Mapping[str, str], command: str,
) -> list[object]:  # fmt: skip
    """Write photos into the folder `photos`, and tables with these columns.

    {split}, {name} and {text} in paths and cells become those of the photo.
    """
    tables: dict[Path, list[dict[str, str]]] = {}
    for name, caption, split in ROWS:
        words = {"level": level or ".", "split": names[split], "name": name, "text": caption}
        write_photo(root / photos.format(**words) / name)
        path = root / f"{table.format(**words)}{suffix}"
        row = {column: cell.format(**words) for column, cell in columns.items()}
        tables.setdefault(path, []).append(row)
    for path, rows in tables.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if suffix == ".csv":
            pandas.DataFrame(rows).to_csv(path, index=False)
        else:
            path.write_text("\n".join(map(json.dumps, rows)))
    if command == "folder":
        return ["folder", root]
    return [suffix[1:], *tables, *(["--images", root] if command == "images" else [])]


_HF = {"file_name": "{split}/{name}", "text": "{text}"}
_NAMES = {"image": "{name}", "caption": "{text}"}
_EACH = {"photos": "{level}/photos", "table": "captions_{split}", "columns": _NAMES}

# Hugging Face's imagefolder: one table above the folders of the splits, or one in each.
metadata_above = partial(
    _tables, photos="{level}/{split}", table="{level}/metadata", columns=_HF, command="folder"
)
metadata_inside = partial(
    _tables, photos="{level}/{split}", table="{level}/{split}/metadata",
    columns={"file_name": "{name}", "text": "{text}"}, command="folder",
)  # fmt: skip
# A table whose file names begin with the folder of the split; one of names alone.
table_of_paths = partial(
    _tables, photos="{level}/{split}", table="{level}/metadata", columns=_HF, command="table"
)
table_of_names = partial(
    _tables, photos="{level}/{split}", table="captions", columns=_NAMES, command="images"
)
# A table with a column of splits, all photos in one folder; a table for each split.
split_column = partial(
    _tables, photos="{level}/photos", table="table", command="images",
    columns={"Image": "{name}", "Caption": "{text}", "Split": "{split}"},
)  # fmt: skip
table_of_each_split = partial(_tables, **_EACH, command="images")
folder_of_tables = partial(_tables, **_EACH, command="folder")


def sidecars(root: Path, names: Names, level: str, suffix: str) -> list[object]:
    """Photos with their captions beside them, in the folders of the splits."""
    for name, caption, split in ROWS:
        path = root / level / names[split] / name
        write_photo(path)
        path.with_suffix(".txt").write_text(caption)
    return ["folder", root]


def write_parquet(root: Path, place: Callable[[str], Path]) -> None:
    splits: dict[Path, list[dict[str, object]]] = {}
    for name, caption, split in ROWS:
        cell = {"bytes": photo(name), "path": name}
        splits.setdefault(place(split), []).append({"image": cell, "text": caption})
    for path, rows in splits.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(rows).to_parquet(path)


def parquet_folders(root: Path, names: Names, level: str, suffix: str) -> list[object]:
    """Parquet under train/0000.parquet and so on."""
    write_parquet(root, lambda split: root / level / names[split] / "0000.parquet")
    return ["folder", root]


def parquet_files(root: Path, names: Names, level: str, suffix: str) -> list[object]:
    """Parquet files that begin with the split, named on the command line."""
    write_parquet(root, lambda split: root / level / f"{names[split]}-00000-of-00001.parquet")
    return ["parquet", *sorted(root.rglob("*.parquet"))]


def shards(root: Path, names: Names, level: str, suffix: str) -> list[object]:
    """WebDataset shards in the folders of the splits, captions inside."""
    for name, caption, split in ROWS:
        key = name.removesuffix(".jpg")
        about = json.dumps({"caption": caption, "key": key})
        text = {f"{key}.txt": caption} if suffix == ".csv" else {f"{key}.json": about}
        encoded = {name: content.encode() for name, content in text.items()}
        write_tar(root / level / names[split] / "00000.tar", {name: photo(name), **encoded})
    return ["folder", root]


def images_by_place(root: Path, names: Names, level: str, suffix: str) -> list[object]:
    """A table of file names; each split's photos are a folder on the command line."""
    command = table_of_names(root, names, level, suffix)
    return [*command[:-1], *(root / level / name for name in names.values())]


LAYOUTS = [
    metadata_above, metadata_inside, sidecars, table_of_paths, table_of_names, split_column,
    table_of_each_split, folder_of_tables, parquet_folders, parquet_files, shards, images_by_place,
]  # fmt: skip
