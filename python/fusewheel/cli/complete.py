"""Names that a shell completes."""

from __future__ import annotations

from collections.abc import Iterable

from click.shell_completion import CompletionItem


def operator_names() -> list[str]:
    """The names of fusewheel's operators."""
    import fusewheel

    return [operator.name for operator in fusewheel.ops.operators()]


def column_names() -> list[str]:
    """The names of the doctor's columns."""
    from fusewheel import doctor

    return [column.name for column in doctor.COLUMNS]


def timed_names() -> list[str]:
    """The names of operators that have a size to time."""
    import fusewheel

    return [o.name for o in fusewheel.ops.operators() if o.benchmarks is not None]


def items(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Those that begin so."""
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]
