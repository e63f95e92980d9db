"""Amounts of resources in the one form in which an API server stores them.

A server parses ``0.5`` and writes ``500m``; a client that sends ``0.5`` sees a difference for ever. The rules are
those of apimachinery's ``resource.Quantity`` in a list of resources: no fraction, the largest suffix that needs
none, the notation of the input, rounded up to thousandths, at most 2^63 - 1 in binary notation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_UP, Decimal, localcontext
from typing import Any

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d+))?")
_SMALLEST = Decimal("1e-3")
_MOST = Decimal(2**63 - 1)


def canonical(quantity: str | float) -> str:
    """Return the canonical form of a quantity: ``0.5`` -> ``500m``, ``1024Mi`` -> ``1Gi``, ``2`` -> ``2``.

    Raises ValueError if it is none.
    """
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if match is None:
        message = f"{quantity!r} is not a Kubernetes quantity"
        raise ValueError(message)
    with localcontext(prec=60):
        number, suffix, exponent = Decimal(match[1]), match[2] or "", match[3]
        if suffix in _BINARY:
            return _binary(min(_rounded(number * 1024 ** _BINARY[suffix]), _MOST))
        value = _rounded(number.scaleb(int(exponent) if exponent else _DECIMAL[suffix]))
        return _decimal(value, with_exponent=exponent is not None)


def resources(requirements: Mapping[str, Any]) -> dict[str, Any]:
    """Return container resources with every quantity of ``limits`` and ``requests`` in canonical form."""
    return {
        key: {name: canonical(quantity) for name, quantity in value.items()}
        if key in {"limits", "requests"} and value
        else value
        for key, value in requirements.items()
    }


def _rounded(value: Decimal) -> Decimal:
    return value.quantize(_SMALLEST, rounding=ROUND_UP) if value % _SMALLEST else value


def _binary(value: Decimal) -> str:
    if abs(value) < 1024 or value != int(value):  # noqa: PLR2004 -- the server itself turns to decimal below 1 Ki
        return _decimal(value, with_exponent=False)
    whole, power = int(value), 0
    while whole % 1024 == 0 and power < len(_BINARY):
        whole, power = whole // 1024, power + 1
    return f"{whole}{['', *_BINARY][power]}"


def _decimal(value: Decimal, *, with_exponent: bool) -> str:
    if not value:
        return "0"
    for suffix, power in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        scaled = value.scaleb(-power)
        if scaled == int(scaled):
            ending = f"e{power}" if power else ""
            return f"{int(scaled)}{ending if with_exponent else suffix}"
    raise AssertionError(value)  # rounded to thousandths before
