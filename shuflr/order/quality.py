"""How well an order mixes: measured on the frames of a file, and forecast for each order and its cost.

The public program's figures: for sampled frames the divergence of each one's byte histogram from that of all (KL and
Jensen-Shannon, in nats), and the spread of their mean record lengths.

Ours: `likeness` is the intraclass correlation of records within frames: 0 when a frame is like a random handful of
records, 1 when it holds copies. A batch of n records from K equally likely frames then has, per degree of freedom, a
source chi-square of about 1 + (n-1)/K * likeness * (1 - K/N), the design effect of cluster sampling (Kish, Survey
Sampling, 1965); `if sorted` is the same with likeness 1: each frame a source of its own.
"""

import math
from typing import NamedTuple

from shuflr import core
from shuflr._native import ffi, lib
from shuflr.records.seekable import SeekableFile

BATCH = 512
POOLS = (8, 16, 32, 64, 128, 256)
GOOD = 2.0  # a source chi-square per degree of freedom up to which an order counts as good
_SAMPLED_RECORDS = 64  # of each frame, for the likeness

KL_UNSAFE, JS_UNSAFE, CV_UNSAFE = 0.10, 0.10, 0.50


class Analysis(NamedTuple):
    """What the sampled frames show."""

    total_frames: int
    sampled_frames: int
    records: int
    mean_record_len: float
    byte_kl_max: float
    byte_kl_mean: float
    byte_js_max: float
    byte_js_mean: float
    frame_entropy_mean: float
    reclen_cv: float
    likeness: float

    @property
    def safe(self) -> bool:
        """Whether chunk-shuffled would do, by the public program's thresholds."""
        return self.byte_kl_max <= KL_UNSAFE and self.byte_js_max <= JS_UNSAFE and self.reclen_cv <= CV_UNSAFE


class Forecast(NamedTuple):
    """What an order gives in a batch of BATCH records, and costs."""

    order: str
    distinct_frames: float
    chi_square: float  # per degree of freedom; 1 is a perfect shuffle
    chi_square_sorted: float  # the same if every frame were a source of its own
    memory_bytes: int


def sample_of(frames: int, wanted: int) -> "list[int]":
    """The frames looked at: the first `wanted` of the shuffle with seed 0."""
    return list(core.permutation(core.key_of_u64(0), frames)[:wanted])


def histogram(data: "memoryview | bytes") -> "list[int]":
    """How often each byte value occurs."""
    bins = ffi.new("uint64_t[256]")
    lib.shuflr_histogram(core.pointer(data), len(data), bins)
    return list(bins)


def entropy(shares: "list[float]") -> float:
    """Shannon entropy in nats."""
    return -sum(p * math.log(p) for p in shares if p > 0)


def kl(p: "list[float]", q: "list[float]") -> float:
    """Kullback-Leibler divergence of p from q in nats; q is positive wherever p is."""
    return sum(a * math.log(a / b) for a, b in zip(p, q) if a > 0)


def js(p: "list[float]", q: "list[float]") -> float:
    """Jensen-Shannon divergence in nats."""
    middle = [(a + b) / 2 for a, b in zip(p, q)]
    return kl(p, middle) / 2 + kl(q, middle) / 2


def _shares(bins: "list[int]") -> "list[float]":
    total = sum(bins)
    return [count / total for count in bins] if total else [0.0] * len(bins)


def _mean(values: "list[float]") -> float:
    return sum(values) / len(values) if values else 0.0


def variation(values: "list[float]") -> float:
    """Population standard deviation over mean; 0 for fewer than two values."""
    if len(values) < 2 or not (mean := _mean(values)):
        return 0.0
    return math.sqrt(_mean([(value - mean) ** 2 for value in values])) / mean


def analyze(file: SeekableFile, wanted: int) -> Analysis:
    """Decodes up to `wanted` frames and compares them."""
    work = core.Work()
    bins: list[list[int]] = []
    lengths: list[float] = []
    groups: list[list[list[float]]] = []
    for frame in sample_of(file.frames, wanted):
        content = file.decode(frame, work)
        bins.append(histogram(content))
        lengths.append(len(content) / max(bins[-1][0x0A], 1))
        groups.append(_features(content))
    total = [sum(column) for column in zip(*bins)]
    everything = _shares(total)
    frames = [_shares(one) for one in bins]
    kls = [kl(one, everything) for one in frames]
    jss = [js(one, everything) for one in frames]
    records = total[0x0A] if total else 0
    return Analysis(
        total_frames=file.frames,
        sampled_frames=len(bins),
        records=records,
        mean_record_len=sum(total) / records if records else 0.0,
        byte_kl_max=max(kls, default=0.0),
        byte_kl_mean=_mean(kls),
        byte_js_max=max(jss, default=0.0),
        byte_js_mean=_mean(jss),
        frame_entropy_mean=_mean([entropy(one) for one in frames]),
        reclen_cv=variation(lengths),
        likeness=max(likeness([[row[:1] for row in group] for group in groups]),
                     likeness([[row[1:] for row in group] for group in groups])),
    )  # fmt: skip


def _features(content: memoryview) -> "list[list[float]]":
    """For some records, spread evenly over a frame: the length, and the share of each byte value."""
    ends = [0, *core.record_ends(content)]
    count = len(ends) - 1
    chosen = range(0, count, max(count // _SAMPLED_RECORDS, 1))
    rows = []
    for i in chosen:
        record = content[ends[i] : ends[i + 1]]
        rows.append([float(len(record)), *_shares(histogram(record))])
    return rows


def likeness(groups: "list[list[list[float]]]") -> float:
    """The intraclass correlation of vectors in groups, by analysis of variance over all their components, in [0, 1]."""
    groups = [group for group in groups if len(group) > 1]
    n = sum(map(len, groups))
    if len(groups) < 2:
        return 0.0
    width = range(len(groups[0][0]))
    means = [[_mean([row[i] for row in group]) for i in width] for group in groups]
    grand = [sum(mean[i] * len(group) for mean, group in zip(means, groups)) / n for i in width]
    between = sum(len(group) * sum((mean[i] - grand[i]) ** 2 for i in width) for mean, group in zip(means, groups))
    within = sum((row[i] - mean[i]) ** 2 for mean, group in zip(means, groups) for row in group for i in width)
    between /= len(groups) - 1
    within /= n - len(groups)
    size = (n - sum(len(group) ** 2 for group in groups) / n) / (len(groups) - 1)
    if between + within == 0:
        return 0.0
    return min(max((between - within) / (between + (size - 1) * within), 0.0), 1.0)


def forecasts(file: SeekableFile, found: Analysis) -> "list[Forecast]":
    """What each order would give in a batch and hold in memory, the cheapest first."""
    frames = file.frames
    frame_bytes = max(file.table.decompressed, default=0)
    mean = found.mean_record_len or 1.0
    per_frame = frame_bytes / mean
    records = sum(file.table.decompressed) / mean

    def row(order: str, pool: float, memory: float) -> Forecast:
        pool = max(min(pool, frames), 1)
        # records of a batch that fall beyond the end of a frame begin another one
        drawn = pool * (1 - (1 - 1 / pool) ** BATCH) + (BATCH / max(per_frame, 1) if pool == 1 else 0)
        spread = (BATCH - 1) / pool * (1 - pool / frames if frames > pool else 0)
        if order == "index-perm":
            spread = 0.0
        seen = round(1 + spread * found.likeness, 2)
        return Forecast(order, round(min(drawn, frames), 1), seen, round(1 + spread, 1), int(memory))

    rows = [row("chunk-shuffled", 1, 2 * frame_bytes)]
    rows += [row(f"frame-pool:{k}", k, k * (frame_bytes + 12 * per_frame)) for k in POOLS if k < frames]
    rows.append(row("index-perm", frames, 16 * records + (64 << 20)))
    return rows


def recommended(table: "list[Forecast]") -> Forecast:
    """The first, so the cheapest, whose chi-square is good."""
    return next((row for row in table if row.chi_square <= GOOD), table[-1])
