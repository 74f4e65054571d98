"""A batch run: photos in, records out in their order, each on disk before it is given."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from captioner.closing import Closing
from captioner.errors import ConfigError, DataError, OutputError
from captioner.files import digest
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner.terminal import in_a_line
from captioner.trust.familiarity import UNFAMILIAR
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.engine import Engine, LocalEngine, Outcome
from captioner_serving.batch.files import RunFiles, with_remedy
from captioner_serving.batch.inputs.photos import MemoryPhoto, Photo
from captioner_serving.batch.inputs.sources import Inputs, LeftOut
from captioner_serving.batch.journal import ERRORS, RECORDS, REVIEW, Journal
from captioner_serving.batch.outputs.coco import image_ids
from captioner_serving.batch.outputs.embedding import Embedder
from captioner_serving.batch.outputs.exiftool import check_exiftool
from captioner_serving.batch.outputs.maps import MapWriter, check_maps_folder
from captioner_serving.batch.outputs.records import check_output
from captioner_serving.batch.outputs.sidecars import SidecarWriter, is_fatal
from captioner_serving.batch.outputs.written import write_unnoted
from captioner_serving.batch.progress import duration

__all__ = ["BatchRun", "caption_batch"]

_NAMED = 10  # photos in the summary; the records have the others
_COMMIT_SECONDS = 1.0  # of work at most are lost when the machine is; a commit waits for the disk

Record = dict[str, Any]


def caption_batch(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Inputs,
    *,
    output: str | os.PathLike[str] | None = None,
    config: BatchConfig | None = None,
    captioner: Captioner | None = None,
) -> Iterator[Record]:
    """Caption any number of photos; yields their records in order, errors among them.

    >>> for record in caption_batch("photos", output="captions.jsonl"):    # doctest: +SKIP
    ...     print(record["image"], record.get("caption", "failed"))

    Args:
        sources: a file, folder, glob, archive or link, or several; or Inputs, for lists and tables.
        output: as `captioner batch --output`: what a call did before is not done again, and its
            records are not yielded again. None writes nothing.
        config: all other settings.
        captioner: the model; None loads the bundled one in the dtype that is fastest here.

    Raises:
        ConfigError: settings that cannot work, or other ones than `output` was begun with.
        OutputError: the output cannot be written; what was done stays.
        DataError: the inputs are not there, hold no photo, or have a list that cannot be read; what
            was done stays.
    """
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    if not isinstance(sources, Inputs):
        sources = Inputs(sources=tuple(os.fspath(source) for source in sources))
    with BatchRun(
        sources,
        output=None if output is None else os.fspath(output),
        config=config or BatchConfig(),
        load=(lambda: captioner) if captioner else Captioner.from_pretrained,
    ) as run:
        yield from run.records()


class BatchRun(Closing):
    """One run, from its settings to its last record; a context manager.

    Attributes:
        counts: records and errors by the file where they lie, of this run and those before.
        before: photos that were done before.

    Args:
        inputs, output, config: as for caption_batch.
        load: gives the model, once all is seen to that needs none.
        ray: the address of a cluster.

    Raises:
        ConfigError, DataError, OutputError: as for caption_batch; then nothing was written.
        MissingExtraError: an optional part is needed.
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        output: str | None,
        config: BatchConfig,
        load: Callable[[], Captioner],
        ray: str | None = None,
    ) -> None:
        review = None if config.review is None else Path(config.review)
        files = None if output is None else RunFiles(Path(output), review)
        _check_outputs(inputs, config, files, ray=ray)
        inputs.check()
        self._left_out = LeftOut(files.all if files else ())
        photos = inputs.photos(self._left_out)
        first = list(islice(photos, 1))
        # A folder whose photos are all captioned and gone is no mistake.
        if not first and (files is None or config.restart or not files.state.exists()):
            known = filter(None, ("the inputs hold no photo", str(self._left_out)))
            raise DataError("; ".join(known))
        photos = chain(first, photos)
        if files is not None and files.output.suffix == ".json":
            photos = _with_ids(photos, files, config)
        self._photos, self._config = photos, config
        captioner = load()
        captioner.check_trust(config.minimum_trust)
        captioner.check_trust(config.keywords, setting="keywords")
        generation = config.asked_of(captioner.generation)
        captioner.vocabulary.start(generation.style)
        captioner.check_head(config.head)
        self._journal = journal = (
            None if files is None else _journal(files, config, captioner, generation)
        )
        try:
            self._engine = _engine(captioner, generation, config, ray)
        except BaseException:
            self._close_journal()
            raise
        self._done = journal.done if journal else set()
        self._failed_before = frozenset(journal.failed if journal else ())
        self.counts = list(journal.counts if journal else (0, 0, 0))
        self.before = len(self._done)
        self._resumed = self._made = self._unlike = 0
        self._waiting: list[Record] = []  # for the disk
        self._again: set[bytes] = set()  # failed before, and still among the inputs
        self._unlike_names: list[str] = []  # of the first of them
        write = journal.written.write if journal else write_unnoted
        self._sidecars = SidecarWriter(config, write) if config.sidecar else None
        self._maps = MapWriter(config, write) if config.maps else None
        self._embedder = Embedder(config, write) if config.embed else None
        self._started = time.monotonic()

    def close(self) -> None:
        """End the processes, and close the files of the run."""
        self._engine.close()
        if self._embedder is not None:
            self._embedder.close()
        self._close_journal()

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def records(self) -> Iterator[Record]:
        """Do the work; yields each record once it is on disk."""
        try:
            yield from self._records()
        except OutputError as error:
            if self._journal is None:
                raise
            raise with_remedy(error) from error.__cause__

    def _records(self) -> Iterator[Record]:
        committed = time.monotonic()
        try:
            with closing(self._engine.run(self._undone())) as batches:
                for batch in batches:
                    self._waiting.extend(map(self._finish, batch))
                    if time.monotonic() - committed >= _COMMIT_SECONDS:
                        yield from self._commit()
                        committed = time.monotonic()
        except BaseException:  # Ctrl-C too: what is finished is not done again
            with suppress(OutputError):
                self._commit()
            raise
        yield from self._commit()
        if self._journal is not None:
            self._journal.finish()

    @property
    def failed(self) -> int:
        """Photos among the inputs that have failed, in this run or in one that it goes on from."""
        return self.counts[ERRORS] - len(self._failed_before - self._again)

    def summary(self) -> str:
        """What was done, in a few lines."""
        seconds = time.monotonic() - self._started
        lines = []
        if self._made:
            noun = "photo" if self._made == 1 else "photos"
            rate = self._made / seconds
            lines.append(f"{self._made:,} {noun} in {duration(seconds)}, {rate:.1f} a second")
            lines.append(self._engine.description)
        journal, (captioned, _, unsure) = self._journal, self.counts
        kept = self._sidecars.kept if self._sidecars else 0
        renamed = self._sidecars.renamed if self._sidecars else 0
        replaced = self._sidecars.replaced if self._sidecars else 0
        embedded = self._embedder.replaced if self._embedder else 0
        gone = len(self._failed_before - self._again)
        counts = {
            f"{'caption' if captioned == 1 else 'captions'} in all": captioned,
            f"unsure, in {self._config.review}": unsure,
            "done before": self._resumed,
            f"{'sidecar' if kept == 1 else 'sidecars'} left as found": kept,
            f"{'sidecar' if replaced == 1 else 'sidecars'} overwritten": replaced,
            f"{'sidecar' if renamed == 1 else 'sidecars'} named photo.jpg.*, as photos share a "
            "stem": renamed,
            f"{'photo' if embedded == 1 else 'photos'} with new texts embedded": embedded,
            f"failed, in {journal.files.errors}" if journal else "failed": self.failed,
        }
        said = [f"{n:,} {what}" for what, n in counts.items() if n]
        lines.append("; ".join(said) or "the inputs hold no photo")
        if self._unlike:
            noun = "photo is" if self._unlike == 1 else "photos are"
            more = self._unlike - len(self._unlike_names)
            names = ", ".join(map(in_a_line, self._unlike_names))
            lines.append(
                f"{self._unlike:,} {noun} unlike the training data (familiarity below "
                f"{UNFAMILIAR}); check the captions of {names}"
                f"{f' and {more:,} more' if more else ''}"
            )
        if again := len(self._again):
            lines.append(f"{again:,} of these failed in an earlier run: --retry-errors tries again")
        if gone:
            what = "is no longer an input" if gone == 1 else "are no longer inputs"
            lines.append(f"{gone:,} that failed before {what}: --retry-errors forgets them")
        lines.append(str(self._left_out))
        return "\n".join(filter(None, lines))

    def _commit(self) -> list[Record]:
        """Bring the records that wait to the disk, and give them."""
        if self._journal is not None:
            self._journal.commit()
        done, self._waiting = self._waiting, []
        self._made += len(done)
        return done

    def _undone(self) -> Iterator[Photo]:
        """List what is to be done; a name that comes twice is done once."""
        done, shard = self._done, self._config.shard
        for photo in self._photos:
            name = digest(photo.name)
            if shard is not None and name not in shard:
                continue
            if name in done:
                if name in self._failed_before:
                    self._again.add(name)
                self._resumed = min(self._resumed + 1, self.before)
                continue
            done.add(name)
            yield photo

    def _finish(self, outcome: Outcome) -> Record:
        """Write what belongs to a photo, and last its record."""
        photo, record, config = outcome.photo, outcome.record, self._config
        file = ERRORS
        if "error" not in record:
            record = config.wording.apply(record)
            if config.min_score is not None and record["score"] < config.min_score:
                record["review"] = True
            file = REVIEW if "review" in record else RECORDS
        if record.get("familiarity", 1.0) < UNFAMILIAR:
            self._unlike += 1
            if self._unlike <= _NAMED:
                self._unlike_names.append(photo.name)
        problem: Record = {}
        if file == RECORDS:
            try:
                if self._sidecars is not None:
                    self._sidecars.write(photo, record)
                if self._maps is not None and outcome.caption and outcome.open_photo:
                    self._maps.write(photo, outcome.caption, outcome.open_photo)
                if self._embedder is not None:  # last, because maps read the photo again
                    self._embedder.write(photo, record)
            except OutputError as error:
                if is_fatal(error):
                    raise
                problem = {"error": error.record()}
        failure = {"image": photo.name, **problem} if problem else None
        if self._journal is not None:
            self._journal.add(record, file, failure=failure)
            self.counts = self._journal.counts
        else:
            self.counts[file] += 1
            self.counts[ERRORS] += failure is not None
        return {**record, **problem}


def _with_ids(photos: Iterator[Photo], files: RunFiles, config: BatchConfig) -> Iterator[Photo]:
    """Refuse photos that share a COCO id before the first is captioned.

    Photos that carry their bytes are not kept in memory: theirs are checked at the end.
    """
    names = [] if config.restart else list(_names(files.records))
    listed: list[Photo] = []
    for photo in photos:
        listed.append(photo)
        if isinstance(photo, MemoryPhoto):
            break
        if config.shard is None or digest(photo.name) in config.shard:
            names.append(photo.name)
    image_ids(names, str(files.output))
    return chain(listed, photos)


def _names(records: Path) -> Iterator[str]:
    """Read the names in records that may end with a torn line."""
    with suppress(FileNotFoundError), records.open("rb") as file:
        for line in file:
            with suppress(ValueError, TypeError, KeyError):
                yield json.loads(line)["image"]


def _journal(
    files: RunFiles, config: BatchConfig, captioner: Captioner, generation: GenerationConfig
) -> Journal:
    model = {
        "name": captioner.name,
        "version": captioner.version,
        "weights": captioner.fingerprint,
    }
    return Journal(
        files,
        {"model": model, **config.settings(generation, files.review_name)},
        restart=config.restart,
        retry_errors=config.retry_errors,
    )


def _engine(
    captioner: Captioner, generation: GenerationConfig, config: BatchConfig, ray: str | None
) -> Engine:
    if ray is None:
        return LocalEngine(captioner, generation, config)
    from captioner_serving.batch.cluster import RayEngine

    return RayEngine(ray, captioner, generation, config)


def _check_outputs(
    inputs: Inputs, config: BatchConfig, files: RunFiles | None, *, ray: str | None
) -> None:
    """Refuse outputs that cannot be written, or would be written over inputs."""
    if files is not None:
        check_output(str(files.output))
        written = {os.path.realpath(path) for path in files.all}
        for source in (*inputs.sources, *inputs.lists):
            if os.path.realpath(source) in written:
                raise ConfigError(f"{source} is an input, and would be written to: name another")
    elif config.review is not None:
        raise ConfigError("review needs an output that is a file: with -, nothing else is kept")
    if config.maps_to is not None:
        check_maps_folder(config.maps_to, inputs.sources)
    if config.sidecar is not None and (packed := inputs.without_folder()):
        raise ConfigError(f"sidecar: {packed} has no folder for a file beside each photo")
    if config.embed and (packed := inputs.without_folder()):
        raise ConfigError(f"embed: the photos of {packed} are not files that texts can be put into")
    if config.embed:
        check_exiftool()
    if ray is not None and config.maps is not None:
        raise ConfigError("a Ray cluster draws no maps: draw them without --ray")
    if ray is not None and config.workers is not None:
        raise ConfigError("a Ray cluster decodes on each of its CPUs: leave --workers out")
