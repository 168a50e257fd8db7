"""Rules for Prometheus in which time runs faster: all times are divided by one factor.

Times are what an alert holds for (`for: 10m`), ranges (`[5m]`), offsets, and seconds that are
written as a product with those of a unit (`30 * 60`, `4 * 86400`). All else of a rule stays, so
counts and shares have the bounds that users get.
"""

import re
from pathlib import Path
from typing import Any, Final

import yaml

FACTOR: Final = 60
"""A minute is a second."""
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RANGE: Final = re.compile(r"\[([0-9smhd]+)\]")
_OFFSET: Final = re.compile(r"\boffset ([0-9smhd]+)")
_PRODUCT: Final = re.compile(r"\b(\d+) \* (60|3600|86400)\b")
_PART: Final = re.compile(r"(\d+)([smhd])")


def seconds_of(duration: str) -> int:
    """Return the seconds of a duration, such as `1h30m`.

    Raises:
        ValueError: it is none.
    """
    if _PART.sub("", duration) or not duration:
        raise ValueError(f"not a duration of Prometheus: {duration!r}")
    return sum(int(count) * _UNIT_SECONDS[unit] for count, unit in _PART.findall(duration))


def quick_expr(expr: str, factor: int = FACTOR) -> str:
    """Return an expression with its times divided."""
    expr = _RANGE.sub(lambda found: f"[{_divided(found[1], factor)}]", expr)
    expr = _OFFSET.sub(lambda found: f"offset {_divided(found[1], factor)}", expr)
    return _PRODUCT.sub(lambda found: f"{int(found[1]) * int(found[2]) / factor:g}", expr)


def quick_rules(rules: Path, folder: Path, factor: int = FACTOR) -> Path:
    """Write the rules of a file with all times divided; return the new file."""
    document = yaml.safe_load(rules.read_text(encoding="utf-8"))
    for group in document["groups"]:
        group["rules"] = [_quick_rule(rule, factor) for rule in group["rules"]]
    folder.mkdir(parents=True, exist_ok=True)
    quick = folder / rules.name
    quick.write_text(yaml.safe_dump(document), encoding="utf-8")
    return quick


def _quick_rule(rule: dict[str, Any], factor: int) -> dict[str, Any]:
    quick = {**rule, "expr": quick_expr(rule["expr"], factor)}
    if "for" in rule:
        quick["for"] = _divided(rule["for"], factor)
    return quick


def _divided(duration: str, factor: int) -> str:
    return f"{seconds_of(duration) * 1000 // factor}ms"
