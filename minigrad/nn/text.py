"""How a module is written as text: one line for a leaf, an indented tree for the rest, as PyTorch."""

from __future__ import annotations


def indented(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


def module_text(name: str, extra: str, children: list[tuple[str, object]]) -> str:
    """`Name(extra)`, or `Name(` and a line `(child): …` for each child."""
    lines = [f"({key}): {indented(repr(child))}" for key, child in children]
    if not lines:
        return f"{name}({extra})"
    head = [extra] if extra else []
    return f"{name}(\n  " + "\n  ".join([*head, *lines]) + "\n)"


def folded_text(name: str, children: list) -> str:
    """The same for a list of modules: equal neighbours are folded, `(0-2): 3 x Linear(…)`."""
    runs: list[list] = []
    for i, text in enumerate(map(repr, children)):
        if runs and runs[-1][2] == text:
            runs[-1][1] = i
        else:
            runs.append([i, i, text])
    lines = [
        f"({a}): {indented(text)}" if a == b else f"({a}-{b}): {b - a + 1} x {indented(text)}" for a, b, text in runs
    ]
    return f"{name}(\n  " + "\n  ".join(lines) + "\n)" if lines else f"{name}()"
