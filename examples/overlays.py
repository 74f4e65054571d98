"""Draw where the model looked, for every photo of a batch.

captioner batch photos --output captions.jsonl --attention
python examples/overlays.py captions.jsonl overlays
"""

import json
import sys
from pathlib import Path

from captioner import Caption, CaptionerError


def draw_overlays(records: Path, folder: Path) -> None:
    """Draw the word with the highest gate of each caption, into FOLDER/NUMBER-PHOTO.png."""
    folder.mkdir(exist_ok=True)
    for number, line in enumerate(records.read_text(encoding="utf-8").split("\n"), 1):
        record = json.loads(line) if line else {"words": []}
        if not record.get("words"):
            continue
        try:
            overlay = Caption.from_record(record).overlay(photo=record["image"], labelled=True)
        except CaptionerError as error:  # a photo in an archive, or that is gone
            print(error, file=sys.stderr)
        else:
            overlay.save(folder / f"{number:06}-{Path(record['image']).stem}.png")


if __name__ == "__main__":
    draw_overlays(Path(sys.argv[1]), Path(sys.argv[2]))
