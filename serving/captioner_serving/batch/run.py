"""A batch run: photos in, records out in their order, each on disk before it is given."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any

from captioner.bundled import bundled_checkpoint
from captioner.checkpoint import read_generation
from captioner.closing import Closing
from captioner.digest import digest
from captioner.errors import OutputError
from captioner.familiarity import UNFAMILIAR
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner.terminal import in_a_line
from captioner_serving.batch.checks import check_run, run_settings
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.engines.local import LocalEngine
from captioner_serving.batch.engines.outcome import Engine, Outcome
from captioner_serving.batch.inputs.left_out import LeftOut
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.journal.journal import ERRORS, RECORDS, REVIEW, Journal
from captioner_serving.batch.journal.unwritten import MemoryJournal
from captioner_serving.batch.outputs.exports import export
from captioner_serving.batch.outputs.maps import MapWriter
from captioner_serving.batch.outputs.sidecars import SidecarWriter, is_fatal
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
        sources: a file, folder, glob, archive or URL, or several; or Inputs, for lists and tables.
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
    if not isinstance(sources, Inputs):
        single = isinstance(sources, str | os.PathLike)
        several = [sources] if single else sources
        sources = Inputs(sources=tuple(os.fspath(source) for source in several))  # type: ignore
    name, config = None if output is None else os.fspath(output), config or BatchConfig()
    if captioner is None:
        own = read_generation(bundled_checkpoint())
        check_run(sources, config, output=name, generation=own)
        captioner = Captioner.from_pretrained()
    with BatchRun(sources, output=name, config=config, captioner=captioner) as run:
        yield from run.records()


class BatchRun(Closing):
    """One run, from its settings to its last record; a context manager.

    Attributes:
        journal: what is done, and how many records are where.
        resumed: photos that an earlier run had done already.
        twins: photos that were the same as another, byte for byte.
        made: photos that this run has done.
        left_out: files of folders that were not taken for photos.

    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        output: str | None,
        config: BatchConfig,
        captioner: Captioner,
        ray: str | None = None,
    ) -> None:
        generation = config.asked_of(captioner.generation)
        captioner.vocabulary.start(generation.style)
        check_run(inputs, config, output=output, generation=captioner.generation, ray=ray)
        self.inputs, self.output, self.config = inputs, output, config
        self.journal: Journal | MemoryJournal = MemoryJournal()
        self.left_out = LeftOut()
        if output is not None:
            model = {**asdict(captioner.name), "weights": captioner.fingerprint}
            settings = {"model": model, **run_settings(generation, config, output)}
            self.journal = Journal(output, config, settings)
            self.left_out = LeftOut(self.journal.files.all)
        written = self.journal.written
        self._sidecars = SidecarWriter(config, written) if config.sidecar else None
        self._maps = MapWriter(config, written) if config.maps else None
        try:
            self.engine = self._engine(captioner, generation, ray)
        except BaseException:
            self.journal.close()
            raise
        self.resumed = self.twins = self.made = self._unlike = 0
        self._unlike_names: list[str] = []  # of the first of them
        self._failed_before = len(self.journal.failed)
        self._gone = set(self.journal.failed)  # as far as is known, not among the inputs any more
        self._started = time.monotonic()

    def close(self) -> None:
        """Close the files of the run."""
        self.journal.close()

    def _engine(
        self, captioner: Captioner, generation: GenerationConfig, ray: str | None
    ) -> Engine:
        size = self.config.batch_size or self.journal.batch_size
        if ray is None:
            return LocalEngine(captioner, generation, self.config, batch_size=size)
        from captioner_serving.batch.engines.cluster import RayEngine

        return RayEngine(ray, captioner, generation, self.config, batch_size=size)

    def records(self) -> Iterator[Record]:
        """Do the work; yields each record once it is on disk."""
        waiting: list[Record] = []
        committed = time.monotonic()
        try:
            with closing(self.engine.run(self._photos(), self._claim)) as spans:
                for span in spans:
                    waiting.extend(self._finish(outcome) for outcome in span)
                    if time.monotonic() - committed >= _COMMIT_SECONDS:
                        self._commit()
                        committed = time.monotonic()
                        self.made += len(waiting)
                        yield from waiting
                        waiting = []
        except BaseException:  # Ctrl-C too: what is finished is not done again
            with suppress(OutputError):
                self.journal.commit()
            raise
        self._commit()
        self.made += len(waiting)
        yield from waiting
        if isinstance(self.journal, Journal) and self.output is not None:
            export(self.output, self.journal, keep_formulas=self.config.keep_formulas)

    @property
    def failed(self) -> int:
        """Photos among the inputs that have failed, in this run or in one that it goes on from."""
        return self.journal.counts[ERRORS] - len(self._gone)

    def summary(self) -> str:
        """Say in a few lines what the run has come to."""
        seconds = time.monotonic() - self._started
        captioned, _, unsure = self.journal.counts
        lines = [
            f"{self.made:,} {_plural(self.made, 'photo')} in {duration(seconds)}, "
            f"{self.made / seconds:.1f} a second",
            self.engine.description,
        ]
        kept, apart = (self._sidecars.kept, self._sidecars.apart) if self._sidecars else (0, 0)
        counts = {
            _plural(captioned, "caption") + " in all": captioned,
            f"unsure, in {self.config.review}": unsure,
            "the same file as another": self.twins,
            "done before": self.resumed,
            _plural(kept, "sidecar") + " left as found": kept,
            _plural(apart, "sidecar") + " named photo.jpg.*, as two photos share a stem": apart,
            f"failed, in {self.output}.errors.jsonl" if self.output else "failed": self.failed,
        }
        said = [f"{n:,} {what}" for what, n in counts.items() if n]
        lines.append("; ".join(said) or "the inputs hold no photo")
        if self._unlike:
            lines.append(self._unlike_line())
        if again := self._failed_before - len(self._gone):
            lines.append(f"{again:,} of these failed in an earlier run: --retry-errors tries again")
        if gone := len(self._gone):
            what = "is no longer an input" if gone == 1 else "are no longer inputs"
            lines.append(f"{gone:,} that failed before {what}: --retry-errors forgets them")
        lines.append(str(self.left_out))
        return "\n".join(filter(None, lines))

    def _unlike_line(self) -> str:
        noun = "photo is" if self._unlike == 1 else "photos are"
        more = self._unlike - len(self._unlike_names)
        names = ", ".join(map(in_a_line, self._unlike_names)) + (f" and {more:,} more" * (more > 0))
        return (
            f"{self._unlike:,} {noun} unlike those that the model has learned from (familiarity "
            f"below {UNFAMILIAR}), and a caption of such may be wrong altogether: {names}"
        )

    def _commit(self) -> None:
        self.journal.batch_size = self.engine.batch_size
        self.journal.commit()

    def _photos(self) -> Iterator[Photo]:
        """List what is to be done; a name that comes twice is done once."""
        done, shard = self.journal.done, self.config.shard
        before = len(done)
        for photo in self.inputs.photos(self.left_out):
            name = digest(photo.name)
            if shard is not None and name not in shard:
                continue
            if name in done:
                self._gone.discard(name)
                self.resumed = min(self.resumed + 1, before)
                continue
            done.add(name)
            yield photo

    def _claim(self, content: bytes) -> bool:
        # Pictures need the attention itself, which a record may not have.
        return self._maps is not None or self.journal.claim(content)

    def _finish(self, outcome: Outcome) -> Record:
        """Write what belongs to a photo, and last its record."""
        photo = outcome.photo
        file, record = self._sorted(outcome)
        if record.get("familiarity", 1.0) < UNFAMILIAR:
            self._unlike += 1
            if self._unlike <= _NAMED:
                self._unlike_names.append(photo.name)
        problem: Record = {}
        if file == RECORDS:
            try:
                if self._sidecars is not None:
                    self._sidecars.write(photo, record)
                if self._maps is not None and outcome.caption is not None:
                    self._maps.write(photo, outcome.caption)
            except OutputError as error:
                if is_fatal(error):
                    raise
                problem = {"error": error.record()}
        failure = {"image": photo.name, **problem} if problem else None
        self.journal.add(digest(photo.name), outcome.content, file, record, failure=failure)
        return {**record, **problem}

    def _sorted(self, outcome: Outcome) -> tuple[int, Record]:
        """Find the record of a photo, and the file where it belongs."""
        name = outcome.photo.name
        if outcome.error is not None:
            return ERRORS, {"image": name, "error": outcome.error}
        if outcome.record is not None:
            record = self.config.wording.apply(outcome.record)
        else:
            twin = self.journal.twin(outcome.content)
            if twin is None:
                raise OutputError(f"the record of the photo that {name} equals is gone: try again")
            self.twins += twin["image"] != name  # else it has its record, and its sidecar failed
            record = {**twin, "image": name}
        unsure = self.config.min_score is not None and record["score"] < self.config.min_score
        return (REVIEW if unsure else RECORDS), record


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
