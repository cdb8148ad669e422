"""Job: the record files of one job, one for each rank, and what is wrong with the rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pycoll.errors import PycollError, UsageError, counted, quoted
from pycoll.trace.reading import read_record
from pycoll.trace.record import Record
from pycoll.trace.words import named

PATTERN = "pycoll-record.*.json"  #: names of record files in a folder


class UnreadableError(PycollError):
    """The files tell nothing; each line of the text says what is wrong with one."""


@dataclass(frozen=True)
class Job:
    """What was found.

    Attributes:
        name: The job's id.
        size: How many ranks it has.
        records: The newest record of each rank.
        bad: The files that were left out, and why, with what is wanted.
        notes: What else the user should know of the files.
    """

    name: str
    size: int
    records: dict[int, Record]
    bad: tuple[tuple[Path, str], ...]
    notes: tuple[str, ...]

    @property
    def missing(self) -> list[int]:
        """The ranks of which there is no record."""
        return [rank for rank in range(self.size) if rank not in self.records]


def gather(paths: Iterable[str | Path]) -> Job:
    """Read the files, and those of the folders.

    Args:
        paths: Of files, or of folders, in which all record files are taken.

    Returns:
        The job. Of several files of a rank the newest is taken.

    Raises:
        UsageError: A path leads to nothing, or a folder has no record files.
        UnreadableError: No file is a record, or they are of several jobs.
    """
    records: list[Record] = []
    bad: list[tuple[Path, str]] = []
    for path in _files(paths):
        try:
            records.append(read_record(path))
        except UsageError as error:
            bad.append((path, str(error)))
    if not records:
        raise UnreadableError("\n".join(f"{path}: {why}" for path, why in bad))
    _require_one_job(records)
    newest, notes = _newest(records)
    if len(sizes := {record.size for record in newest.values()}) > 1:
        notes.append(f"sizes of the job are {sorted(sizes)}: it grew; the largest is taken")
    _leave_out_contradictions(newest, bad)
    return Job(records[0].job, max(sizes), newest, tuple(bad), tuple(notes))


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    seen = set()
    for path in map(Path, paths):
        try:
            found = sorted(path.glob(PATTERN)) if path.is_dir() else [path]
            there = path.exists()
        except OSError as error:  # a name that is too long, a folder that is closed to us
            raise UsageError(
                f"{quoted(str(path))}: {error.strerror}, want record files or their folder"
            ) from error
        if not there:
            raise UsageError(f"{path}: there is no such file, want record files or their folder")
        if not found:
            raise UsageError(f"{path} has no record files, want files named {PATTERN}")
        for file in found:
            if (real := file.resolve()) not in seen:
                seen.add(real)
                yield file


def _require_one_job(records: list[Record]) -> None:
    jobs = Counter(record.job for record in records)
    if len(jobs) == 1:
        return
    lines = []
    for job, n in jobs.most_common():
        first = next(record.path for record in records if record.job == job)
        lines.append(f"{counted(n, 'file')} of job {quoted(job)}, such as {first}")
    raise UnreadableError(
        f"the files are of {len(jobs)} jobs ({'; '.join(lines)}), want those of one"
    )


def _newest(records: list[Record]) -> tuple[dict[int, Record], list[str]]:
    of: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        of[record.rank].append(record)
    newest, notes = {}, []
    for rank, found in sorted(of.items()):
        newest[rank] = max(found, key=lambda record: record.clock.unix_ns)
        if len(found) > 1:
            notes.append(
                f"rank {rank} has {len(found)} files; the newest is taken, {newest[rank].path}"
            )
    return newest, notes


def _leave_out_contradictions(newest: dict[int, Record], bad: list[tuple[Path, str]]) -> None:
    """Leave out files that say of a communicator what most files do not."""
    said: dict[str, Counter[tuple[tuple[int, ...], tuple[int, ...]]]] = defaultdict(Counter)
    for record in newest.values():
        for comm in record.comms:
            said[comm.id][comm.ranks, comm.hosts] += 1
    for rank, record in list(newest.items()):
        for i, comm in enumerate(record.comms):
            (ranks, hosts), _ = said[comm.id].most_common(1)[0]
            if (comm.ranks, comm.hosts) != (ranks, hosts):
                what = "ranks" if comm.ranks != ranks else "hosts"
                got, wanted = (comm.ranks, ranks) if what == "ranks" else (comm.hosts, hosts)
                why = f"comms[{i}].{what} is {quoted(list(got))}, want {quoted(list(wanted))}"
                bad.append((record.path, f"{why}, as other files have {comm.id}"))
                del newest[rank]
                break


def described(job: Job) -> str:
    """Return which ranks of how many there are."""
    whose = "every rank" if not job.missing else named(sorted(job.records))
    return f"job {job.name}: {whose} of {job.size}"
