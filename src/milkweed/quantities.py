"""Amounts as Kubernetes writes them: `500m`, `32`, `256Gi`; read, compared, and written in their shortest form."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from .errors import SpecError

Amount = str | int | float
"""What a person may give for an amount."""

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_QUANTITY = re.compile(
    r"(\d+\.?\d*|\.\d+)(?:([eE][+-]?\d{1,2})|([KMGTPE]i|[numkMGTPE]?))", re.ASCII
)
_LARGEST = 2**63 - 1
_MAX_TEXT = 40
_HINT = "write a number with a unit of Kubernetes, such as 500m, 32, 512Mi, 16Gi or 200G"


def parse_quantity(value: object, *, field: str) -> Fraction:
    """Read `256Gi`, `500m`, `1e3`, 32 or 0.5; never negative."""
    match = _QUANTITY.fullmatch(_text_of(value, field))
    if match is None:
        raise SpecError(f"{field}: {_shown(value)} is not a quantity", hint=_hint(value))
    number, exponent, unit = match.groups()
    amount = Fraction(number + (exponent or "")) * _factor(unit or "")
    if amount > _LARGEST:
        raise SpecError(f"{field}: {_shown(value)} is too large", hint="give a smaller number")
    return amount


def _text_of(value: object, field: str) -> str:
    if isinstance(value, str):
        text = value.strip()
        return text if len(text) <= _MAX_TEXT else ""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_ordinary(value):
        raise SpecError(f"{field}: {_shown(value)} is not a quantity", hint=_HINT)
    if value < 0:
        raise SpecError(f"{field}: {value} is less than zero", hint="say zero or more")
    return repr(value)


def _is_ordinary(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= _LARGEST


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _hint(value: object) -> str:
    """Mind the mistakes that people make: `64GB`, `64gi`, `2K`."""
    word = str(value).strip()
    number = word.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    unit = word[len(number) :].lower().removesuffix("b")
    known = {name.lower(): name for name in [*_BINARY, "k", "M", "G", "T", "P", "E"]}
    if number and unit in known and _QUANTITY.fullmatch(number + known[unit]):
        return f"did you mean {number + known[unit]!r}?"
    return _HINT


def _factor(unit: str) -> Fraction:
    return Fraction(_BINARY[unit]) if unit in _BINARY else _DECIMAL[unit]


def render_quantity(amount: Fraction | int, *, binary: bool = False) -> str:
    """Write an amount as Kubernetes does: a whole number, with the largest unit that leaves it whole.

    What is finer than a billionth is rounded up.
    """
    units = _BINARY if binary else _DECIMAL
    for unit in reversed(units):
        count = Fraction(amount) / _factor(unit)
        if count and count.denominator == 1:
            return f"{count.numerator}{unit}"
    if binary:
        return render_quantity(amount)
    return f"{math.ceil(Fraction(amount) * 10**9)}n" if amount else "0"


def tidy_quantity(value: object, *, field: str) -> str:
    """Write what a person gave in one way: `0.5` and `500m` are the same, and so are `1024Mi` and `1Gi`."""
    amount = parse_quantity(value, field=field)
    return render_quantity(amount, binary=isinstance(value, str) and value.strip().endswith("i"))
