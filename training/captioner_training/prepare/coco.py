"""Download COCO and read its captions, splits and photos.

Photos are read from the zip files, which are not unpacked.
"""

from __future__ import annotations

import json
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from captioner.errors import DataError, OutputError
from captioner_training.data.manifest import Manifest
from captioner_training.prepare.assembly import (
    Options,
    assemble,
    claim_folder,
    find_finished,
)
from captioner_training.prepare.download import fetch
from captioner_training.prepare.files import ImageFiles, SourceImage
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.sources import SourceData, select
from captioner_training.prepare.tables import coco_images

_HOST: Final = "http://images.cocodataset.org"  # its https has a wrong certificate
_KARPATHY: Final = "https://cs.stanford.edu/people/karpathy/deepimagesent"
_KARPATHY_FILE: Final = "caption_datasets.zip"
# The COCO consortium publishes no checksums; these are used by the downloaders of many projects.
PUBLISHED: dict[str, tuple[int, str | None]] = {
    "zips/train2014.zip": (13_510_573_713, "md5:0da8c0bd3d6becc4dcb32757491aca88"),
    "zips/val2014.zip": (6_645_013_297, "md5:a3d79f5ed8d289b7a7554ce06a5782b3"),
    "zips/train2017.zip": (19_336_861_798, "sha1:10ad623668ab00c62c096f0ed636d6aff41faca5"),
    "zips/val2017.zip": (815_585_330, "sha1:4950dc9d00dbe1c933ee0170f5797584351d2a41"),
    "annotations/annotations_trainval2014.zip": (
        252_872_794, "md5:0a379cfc70b0e71301e0f377548639bd",
    ),
    "annotations/annotations_trainval2017.zip": (
        252_907_541, "sha1:8551ee4bb5860311e79dace7e79cb91e432e78b3",
    ),
    # No published checksum; the checksums inside the zip file are compared when it is read.
    _KARPATHY_FILE: (0, None),  # small
}  # fmt: skip
_LICENCE: Final = (
    "Captions: CC BY 4.0, COCO Consortium. Photos: each under the Flickr licence in its record."
)
_WITH_PREPARED: Final = 1.25  # ratio of the downloads and the prepared photos to the downloads
_LARGEST_JSON: Final = 1 << 30  # bytes


def remote_files(
    year: int, *, karpathy: bool, mirror: str | None = None
) -> dict[str, tuple[int, str | None]]:
    """Return size and checksum of the files to download by URL; small ones first.

    Args:
        year: 2014 or 2017.
        karpathy: include Karpathy's splits.
        mirror: URL below which the files have the same paths (zips/train2014.zip).
    """
    paths = [f"annotations/annotations_trainval{year}.zip", *([_KARPATHY_FILE] * karpathy)]
    files = {}
    for path in (*paths, f"zips/val{year}.zip", f"zips/train{year}.zip"):
        host = mirror or (_KARPATHY if path == _KARPATHY_FILE else _HOST)
        files[f"{host.rstrip('/')}/{path}"] = PUBLISHED[path]
    return files


def prepare_coco(options: Options, *, year: int, karpathy: bool, mirror: str | None) -> Manifest:
    """Download and prepare COCO; delete the downloads.

    Raises:
        DownloadError: a file cannot be downloaded, or is not the published one.
        DataError: images or annotations have problems and --skip-bad was not given.
        OutputError: the disk has too little space, or the folder has another data set.
    """
    source = {"kind": "coco", "year": year, "split": "karpathy" if karpathy else "official"}
    with claim_folder(options.to) as work:
        if (manifest := find_finished(options, source=source)) is None:
            paths = _fetch(work / "downloads", source, mirror, options)
            manifest = assemble(_read(paths, source), options, work)
    return manifest


def _fetch(
    folder: Path, source: Mapping[str, Any], mirror: str | None, options: Options
) -> dict[str, Path]:
    """Download missing files; return the paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = remote_files(source["year"], karpathy=source["split"] == "karpathy", mirror=mirror)
    present = sum(path.stat().st_size for path in folder.iterdir())
    needed = round(_WITH_PREPARED * sum(size for size, _ in files.values())) - present
    if (free := shutil.disk_usage(options.to).free) < needed:
        raise OutputError(
            f"{options.to} has {free / 1e9:.1f} GB free, but the download and the data set need "
            f"{needed / 1e9:.1f} GB: free some space, or choose another folder"
        )
    paths = [fetch(url, folder, checksum=checksum) for url, (_, checksum) in files.items()]
    return {path.name: path for path in paths}


def _read(paths: Mapping[str, Path], source: dict[str, Any]) -> SourceData:
    problems = Problems()
    year = source["year"]
    chosen = _karpathy_splits(paths[_KARPATHY_FILE]) if _KARPATHY_FILE in paths else None
    listed: list[SourceImage] = []
    for split in ("train", "val"):
        member = f"captions_{split}{year}.json"
        content = _read_member(paths[f"annotations_trainval{year}.zip"], member)
        listed += coco_images(content, problems, name=member, split=split)
    if chosen is not None:
        listed = _split_anew(listed, chosen, problems)
    places = ImageFiles([paths[f"{split}{year}.zip"] for split in ("train", "val")])
    return SourceData(
        name=f"coco{year}-{source['split']}",
        images=select(listed, places, problems)[0],
        problems=problems,
        source=source,
        licence=_LICENCE,
    )


def _split_anew(
    listed: Sequence[SourceImage], chosen: Mapping[int, str], problems: Problems
) -> list[SourceImage]:
    kept = {
        image.id: image._replace(split=chosen[image.id])
        for image in listed
        if isinstance(image.id, int) and image.id in chosen
    }
    if left_out := len(listed) - len(kept):
        problems.note(f"{left_out:,} images outside Karpathy's splits were left out")
    if absent := [key for key in chosen if key not in kept]:
        raise DataError(
            f"Karpathy's splits have {len(absent):,} images that are not in the annotations "
            f"(first: {absent[0]}): the annotations are of another version of COCO"
        )
    return list(kept.values())


def _karpathy_splits(path: Path) -> dict[int, str]:
    """Read the split of each image id. The sentences are not kept, to save memory."""

    def slim(record: dict[str, Any]) -> dict[str, Any]:
        return {key: record[key] for key in ("images", "cocoid", "split") if key in record}

    content = _read_member(path, "dataset_coco.json", object_hook=slim)
    try:
        return {int(image["cocoid"]): str(image["split"]) for image in content["images"]}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} has no splits of COCO: {error!r}") from error


def _read_member(path: Path, name: str, **options: Any) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            info = next((info for info in infos if info.filename.split("/")[-1] == name), None)
            if info is None:
                raise DataError(f"{path} has no {name}")
            if info.file_size > _LARGEST_JSON:
                raise DataError(f"{name} in {path} is too large: {info.file_size:,} bytes")
            with archive.open(info) as member:
                return json.loads(member.read(info.file_size), **options)
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{name} in {path} cannot be read ({error}): delete {path} and run again"
        ) from error
