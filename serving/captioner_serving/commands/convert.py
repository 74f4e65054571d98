"""`captioner convert RECORDS... --to FILE`: convert the records of a batch."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
docs/sidecars.md."""


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
    from captioner_serving.batch.outputs.formats import (
        is_persons,
        keywords_of,
        read_records,
        write_records,
    )

    config = BatchConfig(**given_fields(BatchConfig, arguments), wording=read_wording(arguments))
    paths = _check(arguments)

    def captions(path: Path) -> Iterator[dict[str, Any] | None]:
        """Yield the worded records of a file; None for a failed photo."""
        for record in read_records(path):
            if record is not None:
                if config.keywords is not None:
                    record["keywords"] = keywords_of(record, config.keywords)
                if is_worded(arguments) and "corrected" not in record:
                    record = config.wording.apply(record)
            yield record

    # Read every line once before writing anything.
    counts: Counter[str] = Counter()
    for record in chain.from_iterable(map(captions, paths)):
        if record is None:
            counts["failed"] += 1
            continue
        with_trust = config.keywords is not None and any("trust" in w for w in record["words"])
        is_by_person = bool(record.get("corrected")) and is_persons(record)
        counts.update(captions=1, person=is_by_person, trust=with_trust)
    if config.keywords is not None and counts["captions"] and not counts["trust"]:
        raise ConfigError(
            "--keywords needs words with trust, and these records have none: caption with a "
            "checkpoint for which you ran `captioner trust`"
        )
    summary = {
        counted(counts["captions"], "caption"): 1,
        f"{counts['person']:,} by a person": counts["person"],
        f"{counted(counts['failed'], 'failed photo')} skipped": counts["failed"],
    }
    if arguments.to is not None:
        with replace_file(arguments.to) as file:
            rows = filter(None, chain.from_iterable(map(captions, paths)))
            plain = arguments.template is not None
            note = write_records(file, Path(arguments.to).suffix, rows, plain=plain)
        summary |= {f"written to {arguments.to}": 1, note: len(note)}
    problems = 0
    if config.sidecar is not None:
        written, problems = _write_sidecars(paths, captions, config, arguments.root)
        summary |= written
    text = "; ".join(part for part, count in summary.items() if count)
    print(printable(text), file=sys.stderr)
    return int(problems > 0)


def _check(arguments: argparse.Namespace) -> list[Path]:
    """Refuse invalid arguments before the work starts; return the files with records."""
    from captioner.shared.files import refuse_input
    from captioner_serving.batch.files import AUXILIARY
    from captioner_serving.batch.outputs.embedding import check_exiftool
    from captioner_serving.batch.outputs.formats import check_output

    if arguments.to is None and arguments.sidecar is None:
        raise ConfigError("no output: add --to FILE or --sidecar KIND")
    if arguments.embed:
        check_exiftool()
    # A pattern such as captions-*.jsonl also matches a run's files without captions.
    names = [name for name in arguments.records if not name.endswith(AUXILIARY)]
    for name in names or arguments.records:
        if name not in names or not name.endswith((".jsonl", ".csv")):
            raise ConfigError(
                f"{name} has no records: use the .jsonl or .csv that captioner batch wrote"
            )
        options = {"--keywords": arguments.keywords, "--to": arguments.to}
        options["--sidecar json"] = True if arguments.sidecar == "json" else None
        given = [option for option, value in options.items() if value is not None]
        if given and name.endswith(".csv"):
            raise ConfigError(
                f"{name} does not have the complete records: leave out {given[0]}, or use the "
                ".jsonl beside it"
            )
    paths = list(map(Path, names))
    if arguments.to is not None:
        check_output(arguments.to)
        if arguments.to.endswith(AUXILIARY):
            raise ConfigError(f"--to {arguments.to} is a file of a run: choose another name")
        refuse_input("--to", arguments.to, paths)
        if os.path.lexists(arguments.to) and not arguments.overwrite:
            raise OutputError(f"{arguments.to} exists: choose another file, or add --overwrite")
    return paths


def _write_sidecars(
    paths: Sequence[Path],
    captions: Callable[[Path], Iterator[dict[str, Any] | None]],
    config: BatchConfig,
    root: str | None,
) -> tuple[dict[str, int], int]:
    """Write sidecars, and embed them; return the counts of the summary, and of failed photos."""
    from captioner.shared.text import counted, in_a_line
    from captioner_serving.batch.outputs.sidecars import SidecarWriter, find_photo, is_fatal
    from captioner_serving.batch.outputs.written import lock_and_log

    writer, counts = SidecarWriter(config), Counter[str]()

    def fail(error: OutputError) -> None:
        print(in_a_line(f"captioner: {error}"), file=sys.stderr)
        counts["failed"] += 1

    for path in paths:
        with lock_and_log(path) as writer.log:
            for record in filter(None, captions(path)):
                if not record["caption"].strip():
                    counts["decorative" if "corrected" in record else "blank"] += 1
                    continue
                if "review" in record:
                    counts["review"] += 1
                    continue
                try:
                    writer.write(find_photo(record["image"], root), record)
                except OutputError as error:
                    if is_fatal(error):
                        raise
                    fail(error)
            for failure in writer.embed().values():
                fail(failure)
    return {
        f"{counted(writer.counts['written'], 'sidecar')} written": 1,
        **writer.summary(),
        f"{counts['review']:,} to review skipped": counts["review"],
        f"{counts['decorative']:,} decorative skipped": counts["decorative"],
        f"{counts['blank']:,} without a caption skipped": counts["blank"],
        f"{counts['failed']:,} not written": counts["failed"],
    }, counts["failed"]
