"""`captioner convert RECORDS... --to FILE`: convert the records of a batch."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.errors import ConfigError, OutputError
from captioner.shared.text import add_keywords
from captioner_serving.commands.options import (
    add_sidecars,
    add_wording,
    given_fields,
    is_worded,
    read_wording,
)

if TYPE_CHECKING:
    from captioner_serving.batch.config import BatchConfig

HELP = "Convert the records of captioner batch to other formats, without captioning again."
EXAMPLES = """examples:
  captioner convert captions.jsonl --to captions.csv
  captioner convert captions-*.jsonl --to captions.parquet
  captioner convert captions.jsonl --sidecar xmp --replace man=person
  captioner convert captions.csv --sidecar xmp --existing overwrite

A .csv may be edited: its columns image, caption, score, keywords and review are used. Captions to
review get no sidecar. In downloads of the page, a person's text replaces the caption, and
decorative photos get no sidecar. Records are not changed; photos are changed only with --embed. See
docs/batch.md."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.usage = "%(prog)s RECORDS... [--to FILE] [--sidecar KIND] [options]"
    add = parser.add_argument
    add("records", nargs="+", metavar="RECORDS", help=".jsonl or .csv files of captioner batch")
    add("--to", metavar="FILE", help=".jsonl, .csv, .parquet, or .json (COCO results)")
    add("--overwrite", action="store_true", help="overwrite FILE if it exists")
    add("--root", metavar="DIR", help="base folder of the photos' names")
    add_keywords(parser)
    add_sidecars(parser.add_argument_group("sidecars"))
    add_wording(parser.add_argument_group("wording"))


def run(arguments: argparse.Namespace) -> int:
    """Convert records; return 1 if a sidecar or photo could not be written."""
    from captioner.shared.files import replace_file
    from captioner.shared.text import counted, printable
    from captioner_serving.batch.config import BatchConfig
    from captioner_serving.batch.files import RunFiles
    from captioner_serving.batch.outputs.formats import (
        keywords_of,
        read_captions,
        read_record_table,
        write_records,
    )
    from captioner_serving.batch.outputs.written import page_files

    config = BatchConfig(**given_fields(BatchConfig, arguments), wording=read_wording(arguments))
    matched = [Path(name) for name in arguments.records]
    # A pattern such as captions-*.jsonl also matches the runs' other files, without captions.
    outputs = {str(path).removesuffix(".journal.jsonl") for path in matched}
    auxiliary = {path for output in outputs for path in RunFiles(Path(output)).auxiliary}
    auxiliary |= {page_files(path).written for path in matched}
    _check(arguments, matched, auxiliary)
    paths = [path for path in matched if path not in auxiliary]

    def read(path: Path) -> Iterator[dict[str, Any] | None]:
        return (read_record_table if path.suffix == ".csv" else read_captions)(path)

    def captions(path: Path) -> Iterator[dict[str, Any]]:
        for record in filter(None, read(path)):
            if "corrected" in record:  # the text of a person is not worded
                record["caption"] = record["corrected"]
            if config.keywords is not None:
                record["keywords"] = keywords_of(record, config.keywords)
            is_model = "corrected" not in record and is_worded(arguments)
            yield config.wording.apply(record) if is_model else record

    # Read every line once before writing anything.
    counts: Counter[bool | str] = Counter()
    for record in chain.from_iterable(map(read, paths)):
        counts[record is not None] += 1
        counts["page"] += record is not None and "reviewed" in record
        if record is not None and "corrected" in record:
            counts["corrected"] += 1
            counts["person"] += (
                bool(record["corrected"]) and record.get("caption_by", "person") == "person"
            )
    if config.keywords is not None:
        _check_trust(chain.from_iterable(map(captions, paths)))
    count = counts[True]
    if (arguments.to or "").endswith(".json"):  # COCO results have one caption for each name
        count = len({record["image"] for path in paths for record in filter(None, read(path))})
    summary = [counted(count, "caption")]
    if counts["person"]:
        summary.append(f"{counts['person']:,} by a person")
    if failed := counts[False]:
        summary.append(f"{counted(failed, 'failed photo')} skipped")
    if arguments.to is not None:
        with replace_file(arguments.to) as file:
            rows = chain.from_iterable(map(captions, paths))
            plain = arguments.template is not None
            suffix, by_person = Path(arguments.to).suffix, counts["corrected"] > 0
            note = write_records(file, suffix, rows, plain=plain, by_person=by_person)
        summary += [f"written to {arguments.to}", *filter(None, [note])]
    problems = 0
    if config.sidecar is not None:
        is_page = counts["page"] > 0
        written, problems = _write_sidecars(paths, captions, config, arguments.root, is_page)
        summary += [part for part, number in written.items() if number]
    print(printable("; ".join(summary)), file=sys.stderr)
    return int(problems > 0)


def _check_trust(records: Iterable[dict[str, Any]]) -> None:
    """Refuse --keywords for the records of a model without trust."""
    record = None
    for record in records:
        if any("trust" in word for word in record["words"]):
            return
    if record is not None:
        raise ConfigError(
            "--keywords needs words with trust, and these records have none: caption with a "
            "checkpoint for which you ran `captioner trust`"
        )


def _check(arguments: argparse.Namespace, paths: Sequence[Path], auxiliary: Iterable[Path]) -> None:
    """Refuse invalid arguments before the work starts."""
    from captioner.shared.files import refuse_input
    from captioner_serving.batch.outputs.embedding import check_exiftool
    from captioner_serving.batch.outputs.formats import check_output

    if arguments.to is None and arguments.sidecar is None:
        raise ConfigError("no output: add --to FILE or --sidecar KIND")
    if arguments.embed:
        check_exiftool()
    for path in paths:
        if path.suffix not in (".jsonl", ".csv") and path not in auxiliary:
            raise ConfigError(
                f"{path} has no records: use the .jsonl or .csv that captioner batch wrote"
            )
        if path.suffix == ".csv" and arguments.keywords is not None:
            raise ConfigError(
                f"{path} has no trust, which --keywords needs: leave out --keywords "
                "to use the keywords in the file"
            )
        if path.suffix == ".csv" and (arguments.to is not None or arguments.sidecar == "json"):
            raise ConfigError(
                f"{path} does not have the complete records: --to and --sidecar json need the "
                ".jsonl beside it"
            )
    if arguments.to is None:
        return
    check_output(arguments.to)
    refuse_input("--to", arguments.to, (*paths, *auxiliary))
    if os.path.lexists(arguments.to) and not arguments.overwrite:
        raise OutputError(f"{arguments.to} exists: choose another file, or add --overwrite")


def _write_sidecars(
    paths: Sequence[Path],
    captions: Callable[[Path], Iterator[dict[str, Any]]],
    config: BatchConfig,
    root: str | None,
    is_page: bool,
) -> tuple[dict[str, int], int]:
    """Write sidecars, and embed them; return the counts of the summary, and of failed photos."""
    from captioner.shared.text import counted, in_a_line
    from captioner_serving.batch.outputs.embedding import Embedder
    from captioner_serving.batch.outputs.sidecars import SidecarWriter, find_photo, is_fatal
    from captioner_serving.batch.outputs.written import EarlierFiles, lock_and_log

    folders = {Path(), Path(root or ""), *(path.parent for path in paths)}
    earlier = EarlierFiles({folder.resolve() for folder in folders})
    embedder, counts = Embedder(), Counter[str]()

    def fail(error: OutputError) -> None:
        print(in_a_line(f"captioner: {error}"), file=sys.stderr)
        counts["failed"] += 1

    for path in paths:
        with lock_and_log(path, is_page=is_page) as log:
            writer, sidecars = SidecarWriter(config, log, earlier), {}
            for record in captions(path):
                if not record["caption"].strip():
                    counts["decorative" if "corrected" in record else "blank"] += 1
                    continue
                if "review" in record and "corrected" not in record:
                    counts["unsure"] += 1
                    continue
                try:
                    photo = find_photo(record["image"], root)
                    if (sidecar := writer.write(photo, record)) is not None:
                        sidecars[photo.file] = sidecar
                        counts["written"] += 1
                except OutputError as error:
                    if is_fatal(error):
                        raise
                    fail(error)
            counts.update(kept=writer.kept, described=writer.described, withheld=writer.withheld)
            if config.embed:
                for failure in embedder.embed(sidecars, writer.before).values():
                    fail(failure)
    return {
        f"{counted(counts['written'] - counts['kept'], 'sidecar')} written": 1,
        f"{counts['kept']:,} unchanged": counts["kept"],
        f"{counts['withheld']:,} by a person not written, because the photos have other texts "
        "(--existing overwrite replaces them)": counts["withheld"],
        f"{counted(counts['described'], 'photo')} with their own description": counts["described"],
        **embedder.counts(),
        f"{counts['unsure']:,} to review skipped": counts["unsure"],
        f"{counts['decorative']:,} decorative skipped": counts["decorative"],
        f"{counts['blank']:,} without a caption skipped": counts["blank"],
        f"{counts['failed']:,} not written": counts["failed"],
    }, counts["failed"]
