# SPDX-License-Identifier: Apache-2.0
"""Where commands print to: a terminal as it is, a pipe or a file in plain whole lines; NO_COLOR is honoured."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.table import Table

PIPE_COLUMNS = 10_000
"""Tables only become as wide as their text: a program that reads a pipe gets whole lines."""


class _PipeConsole(Console):
    """For what is not a terminal: tables are columns of text, without lines drawn around them."""

    def print(self, *objects: Any, **options: Any) -> None:
        for each in objects:
            if isinstance(each, Table):
                each.box, each.padding = None, (0, 2, 0, 0)
                if each.title:  # above a table it would be broken at the table's width
                    super().print(each.title)
                    each.title = None
        super().print(*objects, **options)


def console(*, stderr: bool = False) -> Console:
    """A console for one command's output."""
    out = Console(stderr=stderr, highlight=False, soft_wrap=False)
    return out if out.is_terminal else _PipeConsole(stderr=stderr, highlight=False, width=PIPE_COLUMNS)


def bars(
    *columns: ProgressColumn, where: Console | None = None, transient: bool = False, quiet: bool = False
) -> Progress:
    """Bars that move on a terminal (`where`, else stderr); in a pipe or a file nothing is drawn, nor where `quiet`."""
    shown = where or Console(stderr=True)
    return Progress(*columns, console=shown, transient=transient, disable=quiet or not shown.is_terminal)
