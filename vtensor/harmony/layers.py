"""Which parts of a model take turns: its layers.

Covers: finding them without help, and by name.
Leaves: which of them make a pack (``packs``), in which order they run (``stops`` finds out).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from ..errors import ConfigError

__all__ = ["find_layers", "layers_named"]

_CONTAINERS = (nn.ModuleList, nn.Sequential)


def find_layers(model: nn.Module) -> list[nn.Module]:
    """The children of lists and sequences that hold parameters, the outermost ones, in the order of the model.

    A child that is a list or a sequence itself is looked into. Fewer than two are none.
    """
    found: dict[nn.Module, None] = {}

    def look(module: nn.Module, inside: bool) -> None:
        for child in module.children():
            if isinstance(child, _CONTAINERS):
                look(child, True)
            elif inside and next(child.parameters(), None) is not None:
                found[child] = None
            elif not inside:
                look(child, False)

    look(model, isinstance(model, _CONTAINERS))
    return list(found) if len(found) > 1 else []


def layers_named(model: nn.Module, names: Iterable[str]) -> list[nn.Module]:
    """The modules of these names, as of ``model.named_modules()``.

    Raises
    ------
    ConfigError
        If there is none of a name, or one lies in another.
    """
    known = dict(model.named_modules())
    names = list(names)
    for name in names:
        if name not in known:
            raise ConfigError(f"the model has no layer {name!r}; model.named_modules() lists those it has")
        inner = [other for other in names if other.startswith(name + ".")]
        if inner:
            raise ConfigError(f"the layer {inner[0]!r} is a part of the layer {name!r}: name one of them")
    return [known[name] for name in names]
