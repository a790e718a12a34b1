"""The small languages of `--split`, `--step-batch-size-schedule` and `--rampup-batch-size`."""

from collections.abc import Iterator, Sequence

SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def split_shares(text: str) -> tuple[float, float, float]:
    """Shares of train, valid and test in `949,50,1` or `949/50/1`, as given (not normalised).

    Raises ValueError with what is wrong.
    """
    try:
        shares = [float(word) for word in text.replace("/", ",").split(",")]
    except ValueError:
        raise ValueError("must be numbers with commas between, such as 969,30,1") from None
    if len(shares) > 3:
        raise ValueError("has more than three numbers (train,valid,test)")
    if not all(0 <= share < float("inf") for share in shares) or sum(shares) == 0:
        raise ValueError("must have shares of at least 0, one of them above 0")
    train, valid, test = shares + [0.0] * (3 - len(shares))
    return train, valid, test


def batch_schedule(text: str) -> list[tuple[int, int]]:
    """Pairs (tokens seen, global batch) of `0:16 1B:32`, by rising tokens from 0.

    Raises ValueError with what is wrong.
    """
    steps = []
    for word in text.replace(",", " ").split():
        tokens, colon, batch = word.partition(":")
        if not colon or not batch.isdigit() or int(batch) == 0:
            raise ValueError(f"has {word!r}, which is not TOKENS:BATCH")
        steps.append((_tokens(tokens), int(batch)))
    steps.sort()
    starts = [start for start, _ in steps]
    if not starts or starts[0] != 0 or len(set(starts)) < len(starts):
        raise ValueError("must begin with 0:BATCH and name each number of tokens once")
    return steps


def _tokens(word: str) -> int:
    scale = SUFFIXES.get(word[-1:].upper(), 1)
    number = word[:-1] if scale > 1 else word
    try:
        return round(float(number) * scale)
    except ValueError:
        raise ValueError(f"has {word!r}, which is no number of tokens (suffixes K M B T)") from None


def rampup_batches(rampup: Sequence[int], global_batch_size: int) -> Iterator[int]:
    """The batch sizes that `START INCREMENT SAMPLES` goes through, the last one included.

    Raises ValueError with what is wrong.
    """
    if len(rampup) != 3 or min(rampup[:2]) < 1 or rampup[2] < 0:
        raise ValueError("must be three numbers: START INCREMENT SAMPLES")
    start, increment, _ = rampup
    if start >= global_batch_size or (global_batch_size - start) % increment:
        raise ValueError(
            f"must go from START {start} in whole steps of {increment} up to "
            f"--global-batch-size {global_batch_size}"
        )
    return iter(range(start, global_batch_size + 1, increment))
