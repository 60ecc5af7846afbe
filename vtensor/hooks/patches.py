"""What a session puts in the place of attributes of torch and Python, and how it takes it away again.

Covers: one list of all of them, so that whatever part of a session came to be can be undone at any moment: what was
there is noted before it is replaced, and forgotten only after it is back. An exception may come between any two lines
(Ctrl-C raises one there): :func:`restore` called again goes on where it stopped. What somebody else has put over one
of these meanwhile stays; should he take it away later, what comes back then is ours, and goes with the next session.
Leaves: what is put there (the others of this package; it works without a session, too); locking (``session`` calls
under its lock).
"""

from __future__ import annotations

from typing import Any

__all__ = ["named_as", "replace", "restore"]

_INHERITED: Any = object()  # stands for an attribute that the owner did not have itself
_replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, what was there, what is
# What of ours was under somebody else's when its session ended, and what was under it: the newest, by owner and name.
_covered: dict[tuple[int, str], tuple[Any, Any]] = {}


def replace(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a class or a module until :func:`restore`."""
    found = vars(owner).get(name, _INHERITED)
    ours, under = _covered.get((id(owner), name), (None, None))
    original = under if ours is found else found
    _replaced.append((owner, name, original, value))
    setattr(owner, name, value)


def named_as(function: Any, owner: Any, name: str) -> None:
    """Give a replacement the name under which it is found: by that it is pickled, as the original was."""
    function.__name__ = name
    if isinstance(owner, type):
        function.__module__, function.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
    else:
        function.__module__, function.__qualname__ = owner.__name__, name


def restore() -> None:
    """Put everything back as it was, what was replaced last first."""
    while _replaced:
        owner, name, original, ours = _replaced[-1]
        found = vars(owner).get(name, _INHERITED)
        if found is not ours and found is not original:
            _covered[id(owner), name] = ours, original
        elif original is not _INHERITED:
            setattr(owner, name, original)
        elif name in vars(owner):
            delattr(owner, name)
        _replaced.pop()
