"""What the record of an iteration says: who is alive when and between which uses it may be away (``lifetimes``), what
no budget is below (``needs``), what each tensor is for (``roles``), which call makes what from what (``calls``).
"""

from __future__ import annotations

from .lifetimes import Lifetimes, analyze_lifetimes

__all__ = ["Lifetimes", "analyze_lifetimes"]
