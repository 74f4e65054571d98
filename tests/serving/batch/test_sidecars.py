"""Files beside the photos: text, JSON, and XMP as exiftool reads it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from captioner import Captioner
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.outputs.xmp import merge_xmp
from captioner_serving.batch.run import BatchRun
from captioner_serving.batch.wording import combine

Photos = Callable[..., Path]

needs_exiftool = pytest.mark.needs("exiftool")

LIGHTROOM = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Adobe XMP Core 7.0">
 <!-- edited by hand -->
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/"
    xmlns:dc="http://purl.org/dc/elements/1.1/"
   xmp:Rating="4" crs:Exposure2012="+0.35">
   <dc:subject>
    <rdf:Bag><rdf:li>holiday &amp; sea</rdf:li><rdf:li>2024</rdf:li></rdf:Bag>
   </dc:subject>
   <dc:description>
    <rdf:Alt>
     <rdf:li xml:lang="x-default">Am Strand</rdf:li>
     <rdf:li xml:lang="de">Am Strand</rdf:li>
    </rdf:Alt>
   </dc:description>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def exiftool(path: Path, *, odd: bool = False) -> dict[str, Any]:
    """Everything that exiftool finds; it may remark on a file only if that is odd."""
    result = subprocess.run(
        ["exiftool", "-json", "-XMP:all", "-Warning", "-Error", "-validate", str(path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    (found,) = json.loads(result.stdout)
    assert odd or ("Warning" not in found and "Error" not in found), found
    return dict(found)


@needs_exiftool
def test_a_new_xmp_sidecar_reads_back(tiny: Captioner, photos: Photos) -> None:
    folder = photos(2)
    before = (folder / "p000.jpg").stat()
    config = BatchConfig(sidecar="xmp", language="pt-BR")
    records = list(caption_batch(folder, config=config, captioner=tiny))
    for record in records:
        found = exiftool(Path(record["image"]).with_suffix(".xmp"))
        for name in ("Description", "AltTextAccessibility"):
            assert found[name] == found[f"{name}-pt-BR"] == record["caption"]
    after = (folder / "p000.jpg").stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    assert sorted(path.name for path in folder.iterdir()) == [
        "p000.jpg", "p000.xmp", "p001.jpg", "p001.xmp"
    ]  # fmt: skip


@needs_exiftool
@pytest.mark.parametrize("existing", ["skip", "overwrite", "append", "prepend"])
def test_an_xmp_sidecar_keeps_all_it_holds(existing: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.xmp"
    old = LIGHTROOM.encode()
    path.write_bytes(old)
    before = exiftool(path)
    new = merge_xmp(old, "a <dog> & 'cat'", language="en", existing=existing, path="photo.xmp")
    assert new is not None
    path.write_bytes(new)
    after = exiftool(path)
    assert after["Description-en"] == after["AltTextAccessibility-en"] == "a <dog> & 'cat'"
    default = "a <dog> & 'cat'" if existing == "overwrite" else "Am Strand"
    assert after["Description"] == default
    assert after["Description-de"] == "Am Strand"
    added = {"Description-en", "AltTextAccessibility", "AltTextAccessibility-en", "Description"}
    assert {k: v for k, v in after.items() if k not in added} == {
        k: v for k, v in before.items() if k not in added
    }
    assert b"<!-- edited by hand -->" in new and b"<?xpacket begin=" in new
    # A run that was killed does it again, and nothing changes.
    again = merge_xmp(new, "a <dog> & 'cat'", language="en", existing=existing, path="photo.xmp")
    assert again in (None, new)
    # Another caption later: as `existing` says.
    later = merge_xmp(new, "a bird", language="en", existing=existing, path="photo.xmp")
    if existing == "skip":
        assert later is None
        return
    assert later is not None
    path.write_bytes(later)
    wanted = {
        "overwrite": "a bird",
        "append": "a <dog> & 'cat' a bird",
        "prepend": "a bird a <dog> & 'cat'",
    }
    assert exiftool(path)["Description-en"] == wanted[existing]
    assert exiftool(path)["Description-de"] == "Am Strand"


@pytest.mark.parametrize(
    ("existing", "wanted"),
    [("skip", None), ("append", "Grandma a dog"), ("prepend", "a dog Grandma")],
)
def test_a_default_of_no_other_language_is_the_text_that_is_there(
    existing: Any, wanted: str | None
) -> None:
    default = '<rdf:li xml:lang="x-default">{}</rdf:li>'
    old = LIGHTROOM.replace(default.format("Am Strand"), default.format("Grandma")).encode()
    new = merge_xmp(old, "a dog", language="en", existing=existing, path="photo.xmp")
    assert new is not None  # the other property was missing
    text = new.decode()
    if wanted is None:
        assert default.format("Grandma") in text
        assert text.count('xml:lang="en"') == 1  # of the alternative text alone
    else:
        assert default.format(wanted) in text
        assert text.count('xml:lang="en"') == 2
    again = merge_xmp(new, "a dog", language="en", existing=existing, path="photo.xmp")
    assert again in (None, new)


@needs_exiftool
def test_xmp_that_exiftool_wrote_and_short_forms(tmp_path: Path) -> None:
    path = tmp_path / "photo.xmp"
    subprocess.run(
        [
            "exiftool", "-q", "-XMP-dc:Description=by exiftool", "-XMP-dc:Creator=Ann",
            "-XMP-xmp:Rating=3", "-XMP-iptcCore:Location=Rome", str(path),
        ],
        check=True,
    )  # fmt: skip
    for existing, wanted in (("skip", "by exiftool"), ("append", "by exiftool a dog")):
        new = merge_xmp(
            path.read_bytes(),
            "a dog",
            language="en",
            existing=existing,
            path=str(path),  # type: ignore[arg-type]
        )
        assert new is not None
        path.write_bytes(new)
        found = exiftool(path)
        assert (found["Description"], found["Creator"]) == (wanted, "Ann")
        assert (found["Rating"], found["Location"]) == (3, "Rome")
        assert found["AltTextAccessibility"] == "a dog"
    # A description as an attribute, or as plain text, as some programs write it.
    head = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    space = 'xmlns:d="http://purl.org/dc/elements/1.1/"'
    for body in (
        f'<r:Description r:about="" {space} d:description="mine" d:format="image/jpeg"/>',
        f'<r:Description r:about="" {space}><d:description>mine</d:description>'
        "<d:format>image/jpeg</d:format></r:Description>",
    ):
        old = f"{head}{body}</r:RDF></x:xmpmeta>".encode()
        assert merge_xmp(old, "a dog", language="en", existing="skip", path="x") is not None
        new = merge_xmp(old, "a dog", language="en", existing="prepend", path="x")
        assert new is not None
        path.write_bytes(new)
        found = exiftool(path)
        assert found["Description"] == found["Description-en"] == "a dog mine"
        assert (found["AltTextAccessibility"], found["Format"]) == ("a dog", "image/jpeg")


def test_a_damaged_xmp_sidecar_stays_and_is_an_error(
    tiny: Captioner, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    (folder / "p001.xmp").write_text("<x:xmpmeta>not closed")
    (folder / "p002.xmp").write_text("<svg/>")
    config = BatchConfig(sidecar="xmp")
    records = list(caption_batch(folder, output=output, config=config, captioner=tiny))
    kinds = [record.get("error", {}).get("type") for record in records]
    assert kinds == [None, "output-error", "output-error"]
    assert "p001.xmp exists and is not XML" in records[1]["error"]["detail"]
    assert "p002.xmp exists and is not XMP" in records[2]["error"]["detail"]
    assert (folder / "p001.xmp").read_text() == "<x:xmpmeta>not closed"
    (folder / "p001.xmp").unlink()
    retry = BatchConfig(sidecar="xmp", retry_errors=True)
    again = list(caption_batch(folder, output=output, config=retry, captioner=tiny))
    assert ["error" in record for record in again] == [False, True]


def test_darktable_names_its_sidecars_otherwise(tiny: Captioner, photos: Photos) -> None:
    folder = photos(1)
    (folder / "p000.jpg.xmp").write_text(LIGHTROOM)
    list(caption_batch(folder, config=BatchConfig(sidecar="xmp"), captioner=tiny))
    assert "AltTextAccessibility" in (folder / "p000.jpg.xmp").read_text()
    assert not (folder / "p000.xmp").exists()


@pytest.mark.parametrize("kind", ["txt", "caption"])
def test_text_sidecars(kind: Any, tiny: Captioner, photos: Photos) -> None:
    folder = photos(2)
    (folder / f"p001.{kind}").write_text("mine\n")
    wanted = [record["caption"] for record in caption_batch(folder, captioner=tiny)]

    def run(existing: Any) -> str:
        config = BatchConfig(sidecar=kind, existing=existing)
        list(caption_batch(folder, config=config, captioner=tiny))
        assert (folder / f"p000.{kind}").read_text().startswith(wanted[0])
        return (folder / f"p001.{kind}").read_text()

    assert run("skip") == "mine\n"
    assert run("append") == run("append") == f"mine {wanted[1]}\n"
    assert run("overwrite") == f"{wanted[1]}\n"
    (folder / f"p001.{kind}").write_bytes(b"\xef\xbb\xbfmine")
    assert run("prepend") == run("prepend") == f"{wanted[1]} mine\n"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert (folder / f"p000.{kind}").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_json_sidecars_are_records(tiny: Captioner, photos: Photos) -> None:
    folder = photos(2)
    records = list(caption_batch(folder, config=BatchConfig(sidecar="json"), captioner=tiny))
    for record in records:
        assert json.loads(Path(record["image"]).with_suffix(".json").read_text()) == record


@pytest.mark.parametrize(
    ("old", "existing", "wanted"),
    [("", "append", "new"), ("renew", "append", "renew new"), ("newer", "prepend", "new newer")],
)
def test_combining(old: str | None, existing: Any, wanted: str | None) -> None:
    assert combine(old, "new", existing) == wanted


def test_photos_that_share_a_stem_have_sidecars_of_their_own(
    tiny: Captioner, photos: Photos
) -> None:
    folder = photos(2)
    Image.open(folder / "p001.jpg").save(folder / "p000.PNG")
    list(caption_batch(folder, config=BatchConfig(sidecar="txt"), captioner=tiny))
    made = sorted(path.name for path in folder.glob("*.txt"))
    assert made == ["p000.PNG.txt", "p000.jpg.txt", "p001.txt"]


def test_a_photo_that_is_found_in_large_letters_too_shares_its_stem_with_nobody(
    tiny: Captioner, photos: Photos
) -> None:
    """Two names of one file stand for a file system that does not tell letters apart."""
    folder = photos(2)
    os.link(folder / "p000.jpg", folder / "p000.JPG")
    (folder / "p001.JPG").symlink_to("nowhere")
    config = BatchConfig(sidecar="txt")
    list(caption_batch([folder / "p000.jpg", folder / "p001.jpg"], config=config, captioner=tiny))
    made = sorted(path.name for path in folder.glob("*.txt"))
    assert made == ["p000.txt", "p001.jpg.txt"]


def test_a_sidecar_that_fails_costs_no_caption_and_a_private_one_stays_private(
    tiny: Captioner, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(2), tmp_path / "c.jsonl"
    (folder / "p000.txt").mkdir()
    (folder / "p001.txt").write_text("mine")
    (folder / "p001.txt").chmod(0o600)

    config = BatchConfig(sidecar="txt", existing="append")
    first, second = caption_batch(folder, output=output, config=config, captioner=tiny)
    assert "error" in first and first["caption"] and "error" not in second
    assert len(output.read_text().splitlines()) == 2
    assert (folder / "p001.txt").stat().st_mode & 0o777 == 0o600
    (folder / "p000.txt").rmdir()
    config = BatchConfig(sidecar="txt", existing="append", retry_errors=True)
    inputs = Inputs(sources=(str(folder),))
    with BatchRun(inputs, output=str(output), config=config, captioner=tiny) as retry:
        (again,) = retry.records()
    assert again == {key: value for key, value in first.items() if key != "error"}
    assert (folder / "p000.txt").read_text() == first["caption"] + "\n"
    assert len(output.read_text().splitlines()) == 2
    assert not Path(f"{output}.errors.jsonl").exists()
