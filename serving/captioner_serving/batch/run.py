"""A batch run: caption photos in order, and yield each record once it is on disk."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from captioner.captioner import Captioner
from captioner.closing import Closing
from captioner.errors import ConfigError, DataError, OutputError
from captioner.shared.files import digest
from captioner.shared.text import counted, in_a_line
from captioner.trust.familiarity import UNFAMILIAR
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.engine import LocalEngine, Outcome
from captioner_serving.batch.files import RunFiles, with_remedy
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.batch.inputs.sources import Inputs, skipped_entries
from captioner_serving.batch.journal import ERRORS, RECORDS, Journal
from captioner_serving.batch.outputs.embedding import check_exiftool
from captioner_serving.batch.outputs.formats import check_output
from captioner_serving.batch.outputs.sidecars import SidecarWriter, is_fatal

if TYPE_CHECKING:
    from captioner_serving.batch.cluster import RayEngine

_NAMED = 10  # photos named in the summary
_COMMIT_SECONDS = 1.0  # between commits; a crash loses this much work

_NO_PHOTOS = "there are no photos in the inputs"

Record = dict[str, Any]


def caption_batch(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Inputs,
    *,
    output: str | os.PathLike[str] | None = None,
    config: BatchConfig | None = None,
    captioner: Captioner | None = None,
) -> Iterator[Record]:
    """Caption any number of photos; yield their records in order, including errors.

    >>> for record in caption_batch("photos", output="captions.jsonl"):    # doctest: +SKIP
    ...     print(record["image"], record.get("caption", "failed"))

    Args:
        sources: a file, folder, glob, archive or URL, or several; or Inputs, for lists and tables.
        output: as `captioner batch --output`. Photos of an earlier call with this output are
            skipped, and their records are not yielded. None writes nothing.
        config: all other settings.
        captioner: the model; None: the bundled one.

    Raises:
        ConfigError: settings are invalid, or differ from those of an earlier call.
        OutputError: the output cannot be written. Finished photos are kept.
        DataError: an input does not exist or cannot be read, or there is no photo. Finished photos
            are kept.
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
    """One batch run; a context manager.

    load: returns the model; called after all checks that need no model.
    ray: the address of a Ray cluster.
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
        files = None if output is None else RunFiles(Path(output))
        _check_outputs(inputs, config, files, ray=ray)
        inputs.check()
        self._skipped_entries: Counter[str] = Counter()
        photos = inputs.photos(self._skipped_entries)
        first = list(islice(photos, 1))
        # After an earlier run an empty folder is not an error: its photos may have been moved.
        if not first and (files is None or config.restart or not files.state.exists()):
            skipped = skipped_entries(self._skipped_entries)
            raise DataError("; ".join(filter(None, (_NO_PHOTOS, skipped))))
        self._photos, self._config = chain(first, photos), config
        captioner = load()
        captioner.check_trust(config.minimum_trust)
        captioner.check_trust(config.keywords, setting="keywords")
        generation = config.generation_config(captioner.generation)
        captioner.vocabulary.start(generation.style)
        journal = None
        with ExitStack() as stack:
            if files is not None:
                model = {"name": captioner.name, "version": captioner.version}
                model["weights"] = captioner.fingerprint
                settings = {"model": model, **config.settings(generation)}
                options = {"restart": config.restart, "retry_errors": config.retry_errors}
                journal = stack.enter_context(Journal(files, settings, **options))
            self._journal = journal
            self._engine: LocalEngine | RayEngine
            if ray is None:
                self._engine = LocalEngine(captioner, generation, config)
            else:
                from captioner_serving.batch.cluster import RayEngine

                self._engine = RayEngine(ray, captioner, generation, config)
            stack.callback(self._engine.close)
            self._open = stack.pop_all()
        self._done = journal.done if journal else set()
        self._failed_before = len(journal.failed if journal else ())
        self.counts = list(journal.counts if journal else (0, 0))
        self.before = len(self._done)  # photos that earlier runs finished
        self._skipped = self._finished = self._unfamiliar = self._unsure = self._newer = 0
        self._uncommitted: list[Record] = []
        self._unfamiliar_names: list[str] = []  # at most _NAMED
        written = journal.written if journal else None
        self._sidecars = SidecarWriter(config, written) if config.sidecar else None
        self._started = time.monotonic()

    def close(self) -> None:
        """Stop the engine and close the files of the run."""
        self._open.close()

    def records(self) -> Iterator[Record]:
        """Caption the photos; yield each record once it is on disk."""
        committed = time.monotonic()
        try:
            with closing(self._engine.run(self._remaining())) as batches:
                for batch in batches:
                    self._uncommitted.extend(map(self._finish, batch))
                    if time.monotonic() - committed >= _COMMIT_SECONDS:
                        yield from self._commit()
                        committed = time.monotonic()
        except BaseException:  # Ctrl-C too: keep finished photos
            with suppress(OutputError):
                self._commit()
            raise
        yield from self._commit()
        if self._journal is not None:
            self._journal.finish()

    @property
    def failed(self) -> int:
        """The number of photos that failed, in this run or an earlier one."""
        return self.counts[ERRORS]

    def summary(self) -> str:
        """Return a summary of the run, in a few lines."""
        seconds = time.monotonic() - self._started
        lines = []
        if self._finished:
            photos, rate = counted(self._finished, "photo"), self._finished / seconds
            lines.append(f"{photos} in {tqdm.format_interval(seconds)}, {rate:.1f} per second")
            lines.append(self._engine.description)
        journal, captioned = self._journal, self.counts[RECORDS]
        where = f", in {journal.files.errors}" if journal else ""
        counts = {
            f"{counted(captioned, 'caption')} in total": captioned,
            f"{self._unsure:,} new ones to review": self._unsure,
            f"{self._skipped:,} done before": self._skipped,
            **(self._sidecars.summary() if self._sidecars else {}),
            f"{self.failed:,} failed{where}": self.failed,
        }
        lines.append("; ".join(part for part, count in counts.items() if count) or _NO_PHOTOS)
        if self._unfamiliar:
            names = ", ".join(map(in_a_line, self._unfamiliar_names))
            more = self._unfamiliar - len(self._unfamiliar_names)
            lines.append(
                f"unlike the training data (familiarity below {UNFAMILIAR}): "
                f"{counted(self._unfamiliar, 'photo')}; check the captions of {names}"
                f"{f' and {more:,} more' if more else ''}"
            )
        if self._newer:
            newer = counted(self._newer, "photo")
            lines.append(f"newer than the records: {newer}; --restart captions all")
        if before := self._failed_before:
            lines.append(f"{before:,} of these failed in an earlier run; --retry-errors retries")
        lines.append(skipped_entries(self._skipped_entries))
        lines.append(journal.note if journal else "")
        return "\n".join(filter(None, lines))

    def _commit(self) -> list[Record]:
        """Embed sidecars, then write the uncommitted records to disk; return the records."""
        if self._sidecars is not None:
            failed = {name: error.record() for name, error in self._sidecars.embed().items()}
            for name, error in failed.items():
                self._add({"image": name, "error": error})
            for record in self._uncommitted:
                if record["image"] in failed:
                    record["error"] = failed[record["image"]]
        if self._journal is not None:
            self._journal.commit()
        records, self._uncommitted = self._uncommitted, []
        self._finished += len(records)
        return records

    def _remaining(self) -> Iterator[Photo]:
        """Yield the photos to caption; each name once."""
        done, shard = self._done, self._config.shard
        for photo in self._photos:
            name = digest(photo.name)
            if shard is not None and name not in shard:
                continue
            if name in done:
                self._skipped = min(self._skipped + 1, self.before)
                self._newer += self._is_newer(photo)
                continue
            done.add(name)
            yield photo

    def _is_newer(self, photo: Photo) -> bool:
        """Return whether a photo was changed after the earlier runs."""
        if photo.path is None or self._journal is None:
            return False
        with suppress(OSError):
            return os.stat(photo.path).st_mtime > self._journal.modified
        return False

    def _finish(self, outcome: Outcome) -> Record:
        """Write the sidecar of a photo, and add its record to the journal."""
        photo, record, config = outcome.photo, outcome.record, self._config
        if "error" not in record:
            record = config.wording.apply(record)
            if config.min_score is not None and record["score"] < config.min_score:
                record["review"] = True
            self._unsure += "review" in record
        if record.get("familiarity", 1.0) < UNFAMILIAR:
            self._unfamiliar += 1
            if self._unfamiliar <= _NAMED:
                self._unfamiliar_names.append(photo.name)
        result, problem = dict(record), {}
        if self._sidecars is not None and not record.keys() & {"error", "review"}:
            try:
                self._sidecars.write(photo, record)
            except OutputError as error:
                if is_fatal(error):
                    raise (with_remedy(error) if self._journal else error) from error.__cause__
                problem = {"error": error.record()}
        self._add(record, {"image": photo.name, **problem} if problem else None)
        result.update(problem)
        return result

    def _add(self, record: Record, failure: Record | None = None) -> None:
        """Add a record or error, and the error of its sidecar, to the journal."""
        if self._journal is not None:
            self._journal.add(record, failure=failure)
            self.counts = self._journal.counts
        else:
            self.counts[ERRORS if "error" in record else RECORDS] += 1
            self.counts[ERRORS] += failure is not None


def _check_outputs(
    inputs: Inputs, config: BatchConfig, files: RunFiles | None, *, ray: str | None
) -> None:
    """Refuse outputs that cannot be written, or that would overwrite inputs."""
    if files is not None:
        check_output(str(files.output))
        written = {os.path.realpath(path) for path in files.all}
        for source in (*inputs.sources, *inputs.lists):
            if os.path.realpath(source) in written:
                raise ConfigError(f"{source} is an input and an output: choose another output")
    if config.sidecar is not None and (packed := inputs.without_folder()):
        raise ConfigError(f"sidecars need photos in a folder; {packed} is an archive or URL")
    if config.embed:
        check_exiftool()
    if ray is not None:
        from captioner_serving.batch.cluster import check_ray

        if config.workers is not None:
            raise ConfigError("--ray uses all CPUs of the cluster: leave out --workers")
        check_ray()
