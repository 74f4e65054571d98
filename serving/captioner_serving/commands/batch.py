"""`captioner batch INPUT... --output FILE`: caption many photos."""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial
from typing import NoReturn

from captioner.errors import ConfigError
from captioner.inference.device import add_machine_arguments
from captioner.shared.text import add_keywords, json_line, probability
from captioner_serving.commands.options import (
    add_sidecars,
    add_wording,
    given_fields,
    is_worded,
    read_wording,
)

HELP = "Caption many photos. The same command resumes an interrupted run."
EXAMPLES = """examples:
  captioner batch photos --output captions.jsonl
  captioner batch 'shards/*.tar' --output captions.parquet --shard 1/8
  find . -name '*.jpg' | captioner batch - --output captions.jsonl
  captioner batch photos.csv --column path --output captions.csv --sidecar xmp
Failed photos are listed in FILE.errors.jsonl. See docs/batch.md."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.usage = "%(prog)s INPUT... --output FILE|- [options]"
    parser.add_argument("sources", nargs="*", metavar="INPUT",
        help="photo, folder, 'glob', archive, URL, table, - (a list)")  # fmt: skip
    parser.add_argument("--output", required=True, metavar="FILE|-",
        help=".jsonl, .csv, .parquet, or .json (COCO results)")  # fmt: skip
    add = parser.add_argument_group("inputs").add_argument
    add("--list", action="append", default=[], dest="lists", metavar="FILE",
        help="paths or URLs, one per line")  # fmt: skip
    add("--column", metavar="NAME", help="the table's column of paths")
    add("--root", metavar="DIR", help="base of relative paths in lists and tables")
    add("--allow-private", action="store_true",
        help="allow URLs of private addresses")  # fmt: skip
    add("--exclude", action="append", default=[], metavar="PATTERN",
        help="skip photos or folders of this name: '*_small.jpg'")  # fmt: skip
    add("--shard", metavar="I/N", help="caption the I-th of N parts")
    add("--retry-errors", action="store_true", help="retry failed photos")
    add("--restart", action="store_true", help="delete earlier results and start again")
    outputs = parser.add_argument_group("outputs")
    add = outputs.add_argument
    add("--captions", type=int, default=1, metavar="N", help="the N best captions")
    add("--attention", action="store_true", help="add each word's attention to the records")
    add("--check-attention", action="store_true",
        help="add each word's effect to the records (slower)")  # fmt: skip
    add("--min-score", type=float, metavar="S", help="mark captions with a score below S: review")
    add("--minimum-trust", type=probability, metavar="P",
        help="mark captions with a trust below P: review")  # fmt: skip
    add_keywords(outputs)
    add_sidecars(outputs)
    add_wording(outputs)
    model = parser.add_argument_group("model and speed")
    add = model.add_argument
    add("--beam-size", type=int, metavar="N", help="default: the checkpoint's, 5")
    add("--style", metavar="NAME", help="caption style, for models with several")
    add("--checkpoint", metavar="MODEL",
        help="file, run folder or USER/MODEL (Hub); default: bundled")  # fmt: skip
    add_machine_arguments(model)
    add("--batch-size", type=int, metavar="N",
        help="photos per batch; default: depends on the device")  # fmt: skip
    add("--workers", type=int, metavar="N", help="decoding processes; default: one per core")
    add("--max-pixels", type=int, metavar="N", help="refuse photos with more pixels")
    add("--ray", nargs="?", const="auto", metavar="ADDRESS", help="run on a Ray cluster")
    add("--quiet", action="store_true", help="print failures only")


def run(arguments: argparse.Namespace) -> int:
    """Caption photos; return 1 if any of them failed in this run or an earlier one."""
    from captioner.captioner import Captioner
    from captioner_serving.batch.config import BatchConfig, Shard
    from captioner_serving.batch.inputs.sources import Inputs
    from captioner_serving.batch.progress import ProgressBar
    from captioner_serving.batch.run import BatchRun

    shard = None if arguments.shard is None else Shard.parse(arguments.shard)
    settings = {**given_fields(BatchConfig, arguments), "shard": shard}
    config = BatchConfig(**settings, wording=read_wording(arguments))
    inputs = Inputs(**given_fields(Inputs, arguments))
    english = arguments.language.lower().split("-")[0] == "en"
    if not (english or is_worded(arguments) or arguments.checkpoint):
        raise ConfigError(
            f"--language is {arguments.language}, but the bundled model writes English: use a "
            "--checkpoint in that language, or translate with --replace or --template"
        )
    output = None if arguments.output == "-" else arguments.output
    load = partial(
        Captioner.from_pretrained,
        arguments.checkpoint,
        device=arguments.device,
        dtype=arguments.dtype,
    )
    with (
        BatchRun(inputs, output=output, config=config, load=load, ray=arguments.ray) as batch,
        ProgressBar(quiet=arguments.quiet) as progress,
    ):
        signal.signal(signal.SIGTERM, _interrupt)
        progress.count(inputs, config.shard, done=batch.before)
        try:
            for record in batch.records():
                if output is None:
                    print(json_line(record, encoding=sys.stdout.encoding), flush=True)
                progress.update(record)
        except KeyboardInterrupt:  # or SIGTERM
            if output is not None:
                progress.say("interrupted; run the same command to resume")
            raise
        progress.say(batch.summary())
    return int(batch.failed > 0)


def _interrupt(*_: object) -> NoReturn:
    """Treat SIGTERM like Ctrl-C."""
    raise KeyboardInterrupt
