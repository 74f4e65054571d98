"""COCO: what is downloaded, and how its captions and splits are read from the zip files.

The images are read from inside the zip files, which are never unpacked: every image is compared
with the zip file's own checksum of it, and decoded.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from captioner.errors import DataError, OutputError
from captioner_training.prepare.assemble import assemble
from captioner_training.prepare.coco_json import coco_images
from captioner_training.prepare.download import Downloader
from captioner_training.prepare.gathering import gather
from captioner_training.prepare.images import ListedImage, SourceData
from captioner_training.prepare.manifest import Manifest
from captioner_training.prepare.places import ImageFiles
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.published import RemoteFile
from captioner_training.prepare.splits import Fractions
from captioner_training.prepare.target import Options, claimed, clear, find_finished

__all__ = ["CocoFiles", "prepare_coco"]

_HOST: Final = "http://images.cocodataset.org"  # its https has another host's certificate
# The COCO consortium publishes no checksums. These sizes and checksums stand alike in the
# downloaders of many projects; for the annotations of 2014, the MD5 is also the host's ETag.
_IMAGES: Final = {
    "train2014": RemoteFile(
        url=f"{_HOST}/zips/train2014.zip",
        size=13_510_573_713,
        checksum="md5:0da8c0bd3d6becc4dcb32757491aca88",
    ),
    "val2014": RemoteFile(
        url=f"{_HOST}/zips/val2014.zip",
        size=6_645_013_297,
        checksum="md5:a3d79f5ed8d289b7a7554ce06a5782b3",
    ),
    "train2017": RemoteFile(
        url=f"{_HOST}/zips/train2017.zip",
        size=19_336_861_798,
        checksum="sha1:10ad623668ab00c62c096f0ed636d6aff41faca5",
    ),
    "val2017": RemoteFile(
        url=f"{_HOST}/zips/val2017.zip",
        size=815_585_330,
        checksum="sha1:4950dc9d00dbe1c933ee0170f5797584351d2a41",
    ),
}
_ANNOTATIONS: Final = {
    2014: RemoteFile(
        url=f"{_HOST}/annotations/annotations_trainval2014.zip",
        size=252_872_794,
        checksum="md5:0a379cfc70b0e71301e0f377548639bd",
    ),
    2017: RemoteFile(
        url=f"{_HOST}/annotations/annotations_trainval2017.zip",
        size=252_907_541,
        checksum="sha1:8551ee4bb5860311e79dace7e79cb91e432e78b3",
    ),
}
# No checksum is known of this one: its zip file's own are compared when it is read.
_KARPATHY: Final = RemoteFile(
    url="https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
)
_LICENCE: Final = (
    "Captions: CC BY 4.0, COCO Consortium. Photos: each under the Flickr licence in its record."
)
# Bytes of a prepared image of short side 256 by those of the original; on the safe side.
_PREPARED_SHARE: Final = 0.25


@dataclass(frozen=True, kw_only=True)
class CocoFiles:
    """The zip files of one year."""

    images: tuple[RemoteFile, ...]  # train, then val
    annotations: RemoteFile
    karpathy: RemoteFile | None

    @classmethod
    def of(cls, year: int, *, karpathy: bool) -> CocoFiles:
        """Name the files of 2014 or 2017."""
        return cls(
            images=(_IMAGES[f"train{year}"], _IMAGES[f"val{year}"]),
            annotations=_ANNOTATIONS[year],
            karpathy=_KARPATHY if karpathy else None,
        )

    def all(self) -> list[RemoteFile]:
        """List them, the small ones first: what is wrong with them shows early."""
        return [self.annotations, *filter(None, [self.karpathy]), *reversed(self.images)]

    def at_mirror(self, mirror: str, sums: str | None) -> CocoFiles:
        """Look for the same files at another place, MIRROR/zips/train2014.zip and so on.

        Where the mirror has a file SHA256SUMS, that is what its files are checked by.
        """
        known = dict(_parse_sums(sums or ""))

        def moved(file: RemoteFile) -> RemoteFile:
            url = f"{mirror.rstrip('/')}/{_mirror_path(file)}"
            if file.name in known:
                return RemoteFile(url=url, checksum=f"sha256:{known[file.name]}")
            return replace(file, url=url)

        return CocoFiles(
            images=tuple(map(moved, self.images)),
            annotations=moved(self.annotations),
            karpathy=moved(self.karpathy) if self.karpathy else None,
        )


def _mirror_path(file: RemoteFile) -> str:
    return file.url.removeprefix(f"{_HOST}/") if file.url.startswith(_HOST) else file.name


def _parse_sums(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if found := re.fullmatch(r"([0-9a-fA-F]{64})\s+\*?(\S+)", line.strip()):
            yield found[2].rsplit("/", 1)[-1], found[1].lower()


def prepare_coco(
    options: Options,
    *,
    year: int,
    karpathy: bool,
    mirror: str | None,
    keep_downloads: bool,
    name: str | None,
    licence: str | None,
) -> Manifest:
    """Download COCO, prepare it, and delete the downloads unless they are to be kept.

    Raises:
        DownloadError: a file cannot be had, or is not the one that was published.
        DataError: images or annotations have problems and --skip-bad was not given.
        OutputError: the disk is too small, or the folder holds another data set.

    """
    source = {"kind": "coco", "year": year, "split": "karpathy" if karpathy else "official"}
    keep = "downloads" if keep_downloads else None
    with claimed(options.to) as work:
        if (manifest := find_finished(options, source=source)) is None:
            files = CocoFiles.of(year, karpathy=karpathy)
            paths = _fetch(files, work / "downloads", mirror, options)
            data = _read(files, paths, source)
            data = replace(data, name=name or data.name, licence=licence or data.licence)
            manifest = assemble(data, options, work)
        clear(work, keep=keep)
    return manifest


def _fetch(files: CocoFiles, folder: Path, mirror: str | None, options: Options) -> dict[str, Path]:
    """Download what is missing; return the places of the files by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    with Downloader(folder) as downloader:
        if mirror:
            sums = downloader.read_text(f"{mirror.rstrip('/')}/SHA256SUMS")
            files = files.at_mirror(mirror, sums)
        _check_room(files, downloader, options)
        return {file.name: downloader.fetch(file) for file in files.all()}


def _check_room(files: CocoFiles, downloader: Downloader, options: Options) -> None:
    """Refuse to begin what would end, hours later, in a full disk."""
    sizes = {file.name: downloader.sizes(file) for file in files.all()}
    downloads = sum(missing for _, missing in sizes.values())
    images = sum(sizes[file.name][0] for file in files.images)
    prepared = images * min(1.0, _PREPARED_SHARE * (options.image.short_side / 256) ** 2)
    free = shutil.disk_usage(options.to).free
    if downloads + prepared > free:
        raise OutputError(
            f"not enough room in {options.to}: {downloads / 1e9:.1f} GB to download and about "
            f"{prepared / 1e9:.1f} GB to prepare, but only {free / 1e9:.1f} GB are free"
        )


def _read(files: CocoFiles, paths: dict[str, Path], source: dict[str, Any]) -> SourceData:
    problems = Problems()
    year = source["year"]
    chosen = None
    if files.karpathy:
        chosen = _karpathy_splits(paths[files.karpathy.name])
    listed: list[ListedImage] = []
    for split in ("train", "val"):
        member = f"captions_{split}{year}.json"
        content = _read_member(paths[files.annotations.name], member)
        listed += coco_images(content, problems, name=member, split=split)
    if chosen is not None:
        listed = _split_anew(listed, chosen, problems)
    places = ImageFiles([paths[file.name] for file in files.images])
    return SourceData(
        name=f"coco{year}-{source['split']}",
        images=gather(listed, places, problems, fractions=Fractions()),
        problems=problems,
        source=source,
        licence=_LICENCE,
        published=True,
    )


def _split_anew(
    listed: Sequence[ListedImage], chosen: dict[int, str], problems: Problems
) -> list[ListedImage]:
    found = {
        image.id: image._replace(split=chosen[image.id])
        for image in listed
        if isinstance(image.id, int) and image.id in chosen
    }
    if left_out := len(listed) - len(found):
        problems.note(f"{left_out:,} images that Karpathy's split does not name were left out")
    if absent := [key for key in chosen if key not in found]:
        raise DataError(
            f"Karpathy's split names {len(absent):,} images that are not in the annotations, "
            f"{absent[0]} the first: they belong to another version of COCO"
        )
    return list(found.values())


def _karpathy_splits(path: Path) -> dict[int, str]:
    """Read the split of each image id; the 600,000 tokenized sentences stay out of memory."""

    def slim(record: dict[str, Any]) -> dict[str, Any]:
        return {key: record[key] for key in ("images", "cocoid", "split") if key in record}

    content = _read_member(path, "dataset_coco.json", object_hook=slim)
    try:
        return {int(image["cocoid"]): str(image["split"]) for image in content["images"]}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} has no split of COCO's images: {error!r}") from error


def _read_member(path: Path, name: str, **options: Any) -> Any:
    """Read a JSON file from inside a zip file, which compares its checksum."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [one for one in archive.namelist() if one.rsplit("/", 1)[-1] == name]
            if not members:
                raise DataError(f"{path} has no {name}")
            return json.loads(archive.read(members[0]), **options)
    except (OSError, EOFError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{name} in {path} cannot be read ({error}): delete {path} and run again"
        ) from error
