"""The largest batch that memory holds, found by trying."""

import gc
from collections.abc import Callable

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


class DoesNotFitError(MemoryError):
    """Not even a batch of one fits."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory is full, on a GPU (CUDA, cuBLAS) or on the CPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        any(words in text for words in _OUT_OF_MEMORY) or "cublas_status_alloc_failed" in text
    )


def fits(run: Callable[[int], object], batch: int) -> bool:
    """Whether ``run(batch)`` ends without running out of memory; other errors pass through.

    All that the failed run held is given back before this returns.
    """
    try:
        run(batch)
        failed = False
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        failed = True
    # Only here, outside `except`: inside, the traceback still keeps the run's tensors alive.
    free_memory()
    return not failed


def free_memory() -> None:
    """Collect garbage and hand the allocator's cached blocks back to the device."""
    gc.collect()
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def largest_batch(
    run: Callable[[int], object],
    wanted: int,
    on_try: Callable[[int, bool], None] = lambda batch, fitted: None,
) -> int:
    """The largest batch up to ``wanted`` for which ``run(batch)`` fits.

    Halves until one fits, then bisects between it and the smallest that did not. ``on_try`` hears
    about every try. Raises DoesNotFitError when a batch of one does not fit.
    """

    def tried(batch: int) -> bool:
        fitted = fits(run, batch)
        on_try(batch, fitted)
        return fitted

    too_large, batch = wanted + 1, wanted
    while batch and not tried(batch):
        too_large, batch = batch, batch // 2
    if not batch:
        raise DoesNotFitError("does not fit: not even a batch of 1")
    while too_large - batch > 1:
        middle = (batch + too_large) // 2
        if tried(middle):
            batch = middle
        else:
            too_large = middle
    return batch
