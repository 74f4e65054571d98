#!/usr/bin/env python3
"""Caption photos with only numpy, Pillow and onnxruntime.

    python caption.py photo.jpg
    python caption.py *.jpg --json --attention > captions.jsonl

It reads captioner.json, encoder.onnx, step.onnx and trust.safetensors from its folder. As a module:

    captioner = Captioner()
    record = captioner.caption("photo.jpg")
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageChops, ImageCms

# Disables onnxruntime's telemetry and its device id in ~/.cache.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime

PAD, START, END, UNK = range(4)
MOST_PIXELS = 200_000_000

TURNS = {  # the transposition for each EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

DTYPES = {"I8": "<i1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4"}

# Scripts without spaces between words.
UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A hypothesis: tokens, and the log-probability, attention (L,) and gate of each token."""

    tokens: tuple[int, ...] = ()
    logs: tuple[float, ...] = ()
    attention: tuple[Any, ...] = ()
    gates: tuple[Any, ...] = ()
    score: float = -math.inf


class Captioner:
    """The model in an exported folder.

    Args:
        folder: the exported folder, with captioner.json and two .onnx files.
        threads: the number of threads of onnxruntime; 0: one per core.
    """

    def __init__(self, folder: str | Path = Path(__file__).parent, *, threads: int = 0) -> None:
        folder = Path(folder)
        self.about = json.loads((folder / "captioner.json").read_text(encoding="utf-8"))
        self.words: list[str] = self.about["vocabulary"]
        self.settings: dict[str, Any] = self.about["generation"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.encoder, self.step = (
            onnxruntime.InferenceSession(
                folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"]
            )
            for name in ("encoder", "step")
        )
        self.outputs = [output.name for output in self.step.get_outputs()]
        self.consensus: dict[str, Any] = {}
        self.rows: dict[tuple[int, ...], int] = {}
        if self.about["trust"]:
            self.consensus = _read_tensors(folder / "trust.safetensors", prefix="consensus.")
            grams = self.consensus.get("grams", np.empty((0, 2))).tolist()
            self.rows = {tuple(t for t in gram if t >= 0): at for at, gram in enumerate(grams)}

    # --- from the photo to the encoder's square ---------------------------------------------------

    def open(self, photo: Any) -> Image.Image:
        """Open a photo (a path or a binary file), rotated by EXIF, in sRGB and on white."""
        with Image.open(photo) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"it has more than {MOST_PIXELS:,} pixels")
            side = 6 * (self.about["transform"]["resize"] or self.about["transform"]["size"])
            image.draft(None, (side, side))  # large JPEGs are decoded at a reduced size
            return self._plain(image)

    def _plain(self, image: Image.Image) -> Image.Image:
        image.load()  # the EXIF of a PNG may follow its pixels
        # ImageOps.exif_transpose would also read XMP, and write the whole EXIF again.
        exif = Image.Exif()
        exif.load(image.info.get("exif") or b"")
        profile, opacity = image.info.get("icc_profile"), None
        if image.mode.startswith("I;16"):
            image = image.convert("I").point([(v + 128) // 257 for v in range(65536)], "L")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            opacity = image.getchannel("A")
        picture = _to_srgb(image, profile)
        if opacity is not None:
            white = Image.new("RGB", picture.size, "white")
            white.paste(picture, mask=opacity)
            picture = white
        turn = TURNS.get(exif.get(ExifTags.Base.Orientation, 1))
        return picture if turn is None else picture.transpose(turn)

    def square(self, image: Image.Image) -> Image.Image:
        """Return the square that the encoder gets for an RGB image."""
        transform = self.about["transform"]
        side, (width, height) = transform["size"], image.size
        left, top, right, bottom = self.box(width, height)
        if transform["mode"] != "pad":
            part = (left * width, top * height, right * width, bottom * height)
            return image.resize((side, side), Image.Resampling.BILINEAR, part, reducing_gap=3.0)
        fill = tuple(min(255, max(0, round(255 * value))) for value in transform["mean"])
        square = Image.new("RGB", (side, side), fill)
        x, y, *size = self._inner(width, height)
        square.paste(image.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0), (x, y))
        return square

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return the part of a photo in the square: left, top, right, bottom as fractions."""
        transform = self.about["transform"]
        side = transform["size"]
        if transform["mode"] == "squash":
            return 0.0, 0.0, 1.0, 1.0
        if transform["mode"] == "pad":
            x, y, across, down = self._inner(width, height)
            return -x / across, -y / down, (side - x) / across, (side - y) / down
        covered = min(width, height) * side / (transform["resize"] or side)
        part, rest = covered / width, covered / height
        return (1 - part) / 2, (1 - rest) / 2, (1 + part) / 2, (1 + rest) / 2

    def _inner(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return left, top, width and height of a padded photo in the square, in pixels."""
        side, longer = self.about["transform"]["size"], max(width, height)
        across = max(1, round(width * side / longer))
        down = max(1, round(height * side / longer))
        return (side - across) // 2, (side - down) // 2, across, down

    # --- from the square to sentences -------------------------------------------------------------

    def caption(self, photo: Any, *, captions: int = 1, attention: bool = True) -> dict[str, Any]:
        """Return the record of a photo (a path or a binary file), as `captioner caption --json`.

        captions: the number of sentences. captioner.json has the beam size and the style.
        """
        if captions < 1:
            raise ValueError(f"captions is {captions}; it must be at least 1")
        opened = self.open(photo)
        beam = max(self.settings["beam_size"], captions)
        style = self.settings["style"] or next(iter(self.about["styles"]), None)
        pixels = np.asarray(self.square(opened)).transpose(2, 0, 1)[np.newaxis]
        encoded = self.encode(np.ascontiguousarray(pixels))
        box = [round(edge, 6) for edge in self.box(*opened.size)] if attention else None
        best, *alternatives = (
            self._record(sentence, box) for sentence in self.search(encoded, beam, captions, style)
        )
        return {
            "image": str(photo) if isinstance(photo, str | Path) else None,
            **best,
            **({} if style is None else {"style": style}),
            "alternatives": alternatives,
            "model": {
                "name": self.about["name"],
                "version": self.about["version"],
                "dtype": "float32",
            },
        }

    def encode(self, pixels: Any) -> dict[str, Any]:
        """Encode a square, uint8 (1, 3, size, size). Returns the decoder's state and `features`."""
        names = [*self.about["state"], "features"]
        return dict(zip(names, self.encoder.run(names, {"pixels": pixels}), strict=True))

    def search(
        self, encoded: dict[str, Any], beam: int, captions: int, style: str | None
    ) -> list[Sentence]:
        """Return the best sentences for an encoded square, found by beam search."""
        settings, most = self.settings, self.settings["maximum_length"]
        penalty = settings["length_penalty"]
        is_ranked = bool(self.rows) and settings["consensus"] and beam > 1
        places = beam if is_ranked else captions
        state = {name: encoded[name] for name in self.about["state"]}
        start = START if style is None else self.words.index(f"<start {style}>")
        tokens, totals = np.array([[start]]), np.zeros((1, 1), np.float32)
        paths, pool = [Sentence()], [Sentence()] * places
        for step in range(most + 1):
            step_output = self._advance(tokens, totals, paths, beam, state)
            ending, ended = step_output["ending"][0], step_output["ended"][0]
            if step == most:  # only <end> is allowed
                ending, ended = totals[0] + step_output["end_logs"][0], range(len(paths))
            for total, k in zip(ending, ended, strict=True):
                if total > -math.inf:
                    score = float(total / np.float32((step + 1) ** penalty))
                    path = paths[k]
                    pool.append(replace(path, tokens=(*path.tokens, END), score=score))
            pool = sorted(pool, key=lambda sentence: -sentence.score)[:places]
            if step == most or (beam == 1 and pool[0].tokens):
                break
            tokens, totals = step_output["next_tokens"], step_output["next_totals"]
            parents = step_output["parents"][0]
            paths = [
                self._extend(paths[k], step_output, k, int(token), float(log))
                for k, token, log in zip(parents, tokens[0], step_output["logs"][0], strict=True)
            ]
            # The upper bound: all further words, up to the maximum length, have probability 1.
            if totals[0, 0] / np.float32((most + 1) ** penalty) <= pool[-1].score:
                break
        sentences = [sentence for sentence in pool if sentence.tokens]
        if is_ranked:
            mean = encoded["features"][0].mean(axis=0)
            sentences.sort(key=lambda sentence: -self._expect(mean, sentence.tokens[:-1]))
        return sentences[:captions]

    def _expect(self, mean: Any, tokens: tuple[int, ...]) -> float:
        """Return the expected CIDEr of a sentence; `mean`: the mean of the photo's features."""
        stored = self.consensus
        total = 0.0
        for order in (1, 2):
            counts = Counter(zip(*(tokens[at:] for at in range(order)), strict=False))
            rows = np.array([self.rows.get(gram, -1) for gram in counts], np.int64)
            is_known, known_rows = rows >= 0, rows[rows >= 0]
            rarity = np.where(is_known, stored["rarity"][rows], stored["rarity"].max())
            weights = rarity * [*counts.values()]
            slopes = stored["slopes"][known_rows].astype(np.float32)
            # einsum instead of `@`, whose threads would slow down onnxruntime.
            more = stored["scales"][known_rows] * np.einsum(
                "gd,d->g", slopes, mean - stored["middle"]
            )
            agreed = (weights[is_known] * (stored["usual"][known_rows] + more)).sum()
            total += float(agreed) / (math.hypot(*weights) or 1.0)
        return total / 2

    def _advance(
        self, tokens: Any, totals: Any, paths: list[Sentence], beam: int, state: dict[str, Any]
    ) -> dict[str, Any]:
        """Run a step of the search and update `state`."""
        rows = [self._forbidden(path.tokens) for path in paths]
        longest = max(map(len, rows))
        forbidden = np.array([[[*row, *[PAD] * (longest - len(row))] for row in rows]])
        inputs = {"tokens": tokens, "totals": totals, "forbidden": forbidden}
        values = self.step.run(None, {**inputs, "beam": np.array(beam), **state})
        step_output = dict(zip(self.outputs, values, strict=True))
        state.update(
            {name: step_output[f"next_{name}"] for name in state if f"next_{name}" in step_output}
        )
        return step_output

    def _forbidden(self, tokens: tuple[int, ...]) -> list[int]:
        """Return the tokens that must not follow these tokens."""
        n, around = self.settings["no_repeat_ngram"], self.settings["no_repeat_around"]
        never = [*self.about["silent"], UNK]
        if len(tokens) < self.settings["minimum_length"]:
            never.append(END)
        if n and tokens:
            last = tokens[len(tokens) - n + 1 :]
            starts = range(len(tokens) - n + 1)
            never += [tokens[at + n - 1] for at in starts if tokens[at : at + n - 1] == last]
            if self.about["tokenizer"] != "characters":
                never.append(tokens[-1])
        if len(tokens) > 1 and around in self.words and self.words[tokens[-1]] == around:
            never.append(tokens[-2])
        return never

    def _extend(
        self, path: Sentence, step_output: dict[str, Any], k: int, token: int, log: float
    ) -> Sentence:
        """Append a token to a path, with the attention of hypothesis k."""
        weights, gate = step_output.get("attention"), step_output.get("gate")
        return Sentence(
            tokens=(*path.tokens, token),
            logs=(*path.logs, log),
            attention=path.attention if weights is None else (*path.attention, weights[0, k]),
            gates=path.gates if gate is None else (*path.gates, gate[0, k]),
        )

    # --- records and pictures ---------------------------------------------------------------------

    def _text(self, sentence: Sentence) -> str:
        words = [self.words[token] for token in sentence.tokens[:-1]]
        if self.about["tokenizer"] == "words":  # "n't", "'s" and so on follow without a space
            return re.sub(r" (n't|'(?:s|m|d|ll|re|ve))\b", r"\1", " ".join(words))
        text = before = ""
        for word in words:
            both = before and not UNSPACED.match(before) and not UNSPACED.match(word)
            text, before = f"{text} {word}" if both else text + word, word
        return text

    def _record(self, sentence: Sentence, box: list[float] | None) -> dict[str, Any]:
        words: list[dict[str, Any]] = []
        for at, (token, log) in enumerate(zip(sentence.tokens, sentence.logs, strict=False)):
            word = {"word": self.words[token], "probability": round(math.exp(log), 4)}
            if sentence.gates:
                word["gate"] = round(float(sentence.gates[at]), 4)
            if sentence.attention and box is not None:
                weights = [round(weight, 6) for weight in sentence.attention[at].tolist()]
                word["attention"] = {**self.about["grid"], "box": box, "weights": weights}
            words.append(word)
        text, score = self._text(sentence), round(sentence.score, 4)
        return {"caption": text, "score": score, "words": words}


def _read_tensors(path: Path, *, prefix: str) -> dict[str, Any]:
    """Read the tensors whose names start with a prefix from a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, about in json.loads(data[8:start]).items():
        if name.startswith(prefix):
            first, end = (start + offset for offset in about["data_offsets"])
            values = np.frombuffer(data[first:end], DTYPES[about["dtype"]])
            tensors[name.removeprefix(prefix)] = values.reshape(about["shape"])
    return tensors


def _to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Convert to sRGB with the embedded profile; a damaged profile is ignored."""
    plain = image.convert("RGB")
    if not profile:
        return plain
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        pixels = image if image.mode in ("L", "CMYK") else plain
        picture = ImageCms.profileToProfile(
            pixels, source, ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
        return plain
    if picture is None:
        return plain
    extrema: Any = ImageChops.difference(picture, plain).getextrema()
    largest = max(high for _, high in extrema)
    return picture if largest > 1 else plain  # up to 1: rounding, because the profile is sRGB


def main() -> int:
    """Caption the photos of the command line; return 1 if a photo failed."""
    parser = argparse.ArgumentParser(description="Caption photos, one line each.")
    add = parser.add_argument
    add("photos", nargs="+", metavar="PHOTO")
    add("--json", action="store_true", help="print one JSON record per photo")
    add("--attention", action="store_true", help="add each word's attention (with --json)")
    add("--captions", type=int, default=1, metavar="N", help="the N best captions")
    options = vars(parser.parse_args())
    photos, is_json = options.pop("photos"), options.pop("json")
    try:
        captioner, status = Captioner(), 0
    except Exception as error:  # onnxruntime's exceptions have no common class
        print(f"caption.py: {error}: export the folder again", file=sys.stderr)
        return 1
    for photo in photos:
        try:
            record = captioner.caption(photo, **options)
        except Exception as error:  # damaged files raise many exceptions
            print(f"caption.py: {photo}: {error}", file=sys.stderr)
            status = 1
            continue
        prefix = f"{photo}\t" if len(photos) > 1 else ""
        texts = [part["caption"] for part in (record, *record["alternatives"])]
        whole = json.dumps(record, ensure_ascii=False)
        print(whole if is_json else "\n".join(prefix + text for text in texts), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
