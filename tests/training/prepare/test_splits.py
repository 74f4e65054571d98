"""Who is trained on and who is scored: the hash, small sets, equal images."""

from __future__ import annotations

import hashlib
import random
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioner import ConfigError
from captioner_training.prepare.listing import ListedImage, Problems
from captioner_training.prepare.locations import equal_images
from captioner_training.prepare.originals import ImageFiles
from captioner_training.prepare.selection import select
from captioner_training.prepare.splits import Fractions
from tests.properties import FEW, texts


def test_splits_by_hash_are_near_their_share_and_stay() -> None:
    names = [f"photo-{n}.jpg" for n in range(10_000)]
    chosen = Fractions(val=0.1, test=0.2).draw(names)
    # Binomial: 1,000 and 2,000 expected, deviations 30 and 40.
    assert 880 < chosen.count("val") < 1120 and 1840 < chosen.count("test") < 2160
    for n in range(50):
        first = hashlib.sha256(names[n].encode()).hexdigest()[:8]
        share = int(first, 16) / 16**8
        assert chosen[n] == ("val" if share < 0.1 else "test" if share < 0.3 else "train")
    others = dict(zip(names[:6_000], Fractions(val=0.1, test=0.2).draw(names[:6_000]), strict=True))
    assert all(others.get(name, split) == split for name, split in zip(names, chosen, strict=True))


@pytest.mark.parametrize(
    ("count", "least"),
    [(2, 1), (5, 1), (9, 1), (10, 2), (14, 2), (20, 2), (60, 3), (100, 5)],
)
def test_small_sets_get_at_least_half_of_their_share(count: int, least: int) -> None:
    """By the hash alone, 8 photos have no val in 43 of 100 sets."""
    vals, tests = [], []
    for series in range(40):
        names = [f"{series}-{n}.jpg" for n in range(count)]
        chosen, scored = Fractions().draw(names), Fractions(val=0.0, test=0.1).draw(names)
        assert "train" in chosen and "val" not in scored
        vals.append(chosen.count("val"))
        tests.append(scored.count("test"))
    assert min(vals) == min(tests) == least
    # The default test split leaves photos to train on.
    assert Fractions(val=0.95).draw(list(range(400))).count("train") > 4
    assert set(Fractions(val=0).draw(list(range(count)))) == {"train"}
    assert Fractions().draw(["one"]) == ["train"] and Fractions().draw([]) == []


@FEW
@given(
    keys=st.lists(texts() | st.integers(), max_size=250, unique_by=str),
    val=st.floats(0, 0.5),
    test=st.floats(0, 0.4) | st.none(),
    order=st.randoms(),
)
def test_splits_do_not_depend_on_the_order(keys, val, test, order) -> None:
    fractions = Fractions(val=val, test=test)
    splits = dict(zip(keys, fractions.draw(keys), strict=True))
    shuffled = order.sample(keys, len(keys))
    assert dict(zip(shuffled, fractions.draw(shuffled), strict=True)) == splits
    assert not keys or "train" in splits.values()
    if len(keys) > 2:
        assert ("val" in splits.values()) == (val > 0)


def listed(*names: str, split: str | None = None) -> list[ListedImage]:
    return [ListedImage(id=n, file_name=n, captions=("a",), split=split) for n in names]


def test_equal_images_are_drawn_together(tmp_path: Path) -> None:
    for n in range(200):
        (tmp_path / f"{n:03}.jpg").write_bytes(bytes([n]) * 9000)
        (tmp_path / f"copy-{n:03}.jpg").write_bytes(bytes([n]) * 9000)
    names = [f"{kind}{n:03}.jpg" for kind in ("", "copy-") for n in range(200)]
    problems = Problems()
    found = select(
        listed(*names), ImageFiles([tmp_path]), problems, fractions=Fractions(val=0.3)
    ).images
    splits = [image.split for image in found]
    assert splits[:200] == splits[200:] and 80 <= splits.count("val") <= 160
    assert not problems
    # Where the data have ids, these are drawn by, else the names.
    for keys in names[:200], [*range(1000, 1200)]:
        images = [
            image._replace(id=key) for key, image in zip(keys, listed(*names[:200]), strict=True)
        ]
        found = select(images, ImageFiles([tmp_path]), problems).images
        assert [image.split for image in found] == Fractions().draw(keys)
    # One of them is in val by the data's own word: its copy goes with it.
    own = [*listed("005.jpg", split="validation"), *listed("copy-005.jpg")]
    found = select(own, ImageFiles([tmp_path]), problems).images
    assert [image.split for image in found] == ["val", "val"] and not problems


@FEW
@given(order=st.permutations(range(9)), named=st.sampled_from([None, "val", "test"]))
def test_copies_share_a_split_in_any_order(tmp_path: Path, order, named) -> None:
    """Three photos of three files each; of one file the data names the split."""
    for n in range(9):
        (tmp_path / f"{n}.jpg").write_bytes(bytes([n % 3]) * 9000)
    rows = [listed(f"{n}.jpg", split=named if n == 4 else None)[0] for n in order]
    found = select(rows, ImageFiles([tmp_path]), Problems(), fractions=None).images
    splits: dict[int, set[str]] = {}
    for image in found:
        splits.setdefault(int(image.file_name[0]) % 3, set()).add(image.split)
    if named:  # files outside any split are left out, copies of those inside are not
        assert splits == {1: {named}}
        assert len(found) == 3
    else:
        assert len(found) == 9 and all(len(of) == 1 for of in splits.values())


def test_the_most_similar_name_is_found(tmp_path: Path) -> None:
    """First one that differs in case or suffix, then one elsewhere; hidden folders are none."""
    for name in (
        "a.JPG", "deep/a.jpg", "b.png", "deep/b.jpg", "deep/c.jpg", "deep/x/d.jpg", ".old/d.jpg",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    with zipfile.ZipFile(tmp_path / "MORE.ZIP", "w") as archive:
        archive.writestr("deep/c.jpg", "packed")
        archive.writestr("deep/e.jpg", "packed")
    files = ImageFiles([tmp_path])
    found = {name: files.find(name) for name in ("a.jpg", "b", "c.jpg", "d.jpg", "e.jpg")}
    places = {name: image and (image.name, image.location.member) for name, image in found.items()}
    assert places == {
        "a.jpg": ("a.JPG", None), "b": ("b.png", None), "c.jpg": ("deep/c.jpg", None),
        "d.jpg": ("deep/x/d.jpg", None), "e.jpg": ("deep/e.jpg", "deep/e.jpg"),
    }  # fmt: skip


def test_equal_images_are_found_wherever_they_lie(tmp_path: Path) -> None:
    one = random.Random(0).randbytes(20_000)
    (tmp_path / "a.jpg").write_bytes(one)
    (tmp_path / "b.jpg").write_bytes(one[:-1] + b"\0")  # of equal size, and equal in the middle
    (tmp_path / "c.jpg").write_bytes(one[1:])
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.add(tmp_path / "a.jpg", "d.jpg")
    for name, kind in ("e.zip", zipfile.ZIP_STORED), ("f.zip", zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / name, "w", kind) as archive:
            archive.writestr(f"{name[0]}.jpg", one)
    files = ImageFiles([tmp_path])
    found = [files.find(f"{letter}.jpg") for letter in "abcdef"]
    groups = equal_images([one.location for one in found if one])
    assert groups == [[0, 3, 4, 5], [1], [2]]


@pytest.mark.parametrize(("val", "test"), [(0.6, 0.4), (0.3, 0.8), (1.0, None), (-0.1, 0.2)])
def test_fractions_leave_photos_for_training(val: float, test: float | None) -> None:
    with pytest.raises(ConfigError, match=rf"--val is {val}, --test is {test}; .* sum below 1"):
        Fractions(val=val, test=test)
    assert Fractions(val=0.6, test=0.39).describe(1000) == "1/60/39"
