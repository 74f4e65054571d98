"""A check that an exported model gives the same captions and attention as its checkpoint."""

from __future__ import annotations

import io
from pathlib import Path
from runpy import run_path

from captioner.captioner import Captioner
from captioner.errors import OutputError
from captioner.shared.paths import sample_photos

_NEAR = 1e-4  # the largest difference of attention weights, which sum to 1


def check_parity(checkpoint: Path, folder: Path) -> int:
    """Compare an exported model with its checkpoint; return the number of sample photos.

    Raises OutputError: the models differ; the detail names the picture and the difference.
    """
    captioner = Captioner.from_pretrained(checkpoint, device="cpu", dtype="float32")
    exported = run_path(str(folder / "caption.py"), run_name="exported")["Captioner"](folder)
    pictures = {name: path.read_bytes() for name, path in sample_photos().items()}
    for name, data in pictures.items():
        wanted = captioner.caption(data).record(attention=True)
        got = exported.caption(io.BytesIO(data))
        if wanted["caption"] != got["caption"]:
            raise OutputError(
                f"the exported model differs from {checkpoint} on {name}: "
                f"{got['caption']!r} instead of {wanted['caption']!r}"
            )
        weights, exact = (
            [
                weight
                for word in record["words"]
                if "attention" in word
                for weight in word["attention"]["weights"]
            ]
            for record in (got, wanted)
        )
        far = max((abs(a - b) for a, b in zip(weights, exact, strict=True)), default=0.0)
        if far > _NEAR:
            raise OutputError(
                f"the exported model differs from {checkpoint} on {name}: attention by {far:.1e}"
            )
    return len(pictures)
