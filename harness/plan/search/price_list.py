# SPDX-License-Identifier: Apache-2.0
"""The prices that a comparison of machines uses: the dated table, a file of one's own, `--price KIND=X`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from harness.facts.devices import DEVICES, find_device, suggest_device
from harness.facts.gpu_prices import GPU_PRICES, GpuPrice
from harness.file_io import read_regular
from harness.plan.plan_usage import usage_error
from harness.units import finite_number

_MAX_DAYS = 366
_MAX_PRICE = 1e6
_MAX_FILE_BYTES = 1 << 20
_COMMAND_LINE = "the command line"
_OWN_PRICES_FIX = "give `--price KIND=X` for each kind to compare, or a file of your own with `--price-file`"


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices by kind. `read_on`: the day of the oldest of them; None where all are the user's. `is_of_one_kind`: the
    others were left out, whether they have a price or not.
    """

    prices: tuple[GpuPrice, ...]
    read_on: date | None
    is_of_one_kind: bool = False

    def only(self, name: str) -> PriceList:
        """The price of one kind alone. Raises UserError for a kind without a price, or an unknown one."""
        device = find_device(name)
        if device is None:
            raise usage_error(f"GPU kind `{name}` is not known", _near_kind(name))
        prices = tuple(price for price in self.prices if price.kind == device.name)
        if not prices:
            raise usage_error(f"there is no price of {device.name}", f"give `--price {device.name}=X`")
        return PriceList(prices, self.read_on, is_of_one_kind=True)


def split_price_options(options: Sequence[str] | None) -> tuple[float | None, tuple[str, ...]]:
    """`--price X` and the `--price KIND=X` apart. Raises UserError for an invalid price."""
    plain = [option for option in options or () if "=" not in option]
    if len(plain) > 1:
        raise usage_error(
            f"`--price` is given twice: {plain[0]} and {plain[1]}", "give one price, or `KIND=X` for each"
        )
    return (_parse_price(plain[0], plain[0]) if plain else None), tuple(o for o in options or () if "=" in o)


def read_price_list(by_kind: Sequence[str], file: str | None, today: date) -> PriceList:
    """Prices of the command line before those of the file, and these before the table.

    With `--price-file`, or with nothing but prices of one's own, the table is not used where it is too old. Raises
    UserError for what cannot be read, and where a table older than a year would be used.
    """
    own = {price.kind: price for price in _parse_kind_prices(by_kind, today)}
    rows: tuple[GpuPrice, ...] = GPU_PRICES if file is None else _read_price_file(file)
    read_on = min((row.read_on for row in rows), default=today)
    if (today - read_on).days > _MAX_DAYS:
        if file is not None or not own:
            where = "the table of prices" if file is None else f"`{file}`"
            raise usage_error(f"{where} is of {read_on.isoformat()}, which is more than a year ago", _OWN_PRICES_FIX)
        rows = ()
    elif read_on > today and file is not None:
        raise usage_error(f"`{file}` is of {read_on.isoformat()}, which is in the future", "correct its `date`")
    prices = (*own.values(), *(row for row in rows if row.kind not in own))
    return PriceList(prices, read_on if rows else None)


def _parse_kind_prices(options: Iterable[str], today: date) -> list[GpuPrice]:
    prices = []
    for option in options:
        name, _, text = option.partition("=")
        prices.append(_own_price(name, _parse_price(text, option), _COMMAND_LINE, today))
    return prices


def _own_price(name: str, dollars: float, source: str, day: date) -> GpuPrice:
    device = find_device(name)
    if device is None or device.is_cpu:
        raise usage_error(f"`{name}={dollars:g}` names an unknown kind of GPU", _near_kind(name))
    listed = next((row for row in GPU_PRICES if row.kind == device.name), None)
    memory = device.memory if listed is None else listed.host_memory
    assumed = True if listed is None else listed.is_memory_assumed
    return GpuPrice(device.name, dollars, memory, source, source, day, assumed)


def _near_kind(name: str) -> str:
    similar = suggest_device(name)
    return f"did you mean {similar}?" if similar else "choose one of " + ", ".join(DEVICES)


def _parse_price(text: str, option: str) -> float:
    fix = "give the price of a GPU hour, such as `2.5`, or `H100-80GB=2.5`"
    try:
        dollars = float(text)
    except ValueError:
        raise usage_error(f"`--price {option}` is no price", fix) from None
    if not 0 <= dollars < _MAX_PRICE:
        raise usage_error(f"`--price {option}` is no price", fix)
    return dollars


def _read_price_file(file: str) -> tuple[GpuPrice, ...]:
    """Rows of a YAML file: `date: 2026-11-01` and `prices: {H100-80GB: 2.1}`."""
    import yaml

    fix = "write `date: 2026-11-01` and below `prices:` lines such as `H100-80GB: 2.1`"
    try:
        body = yaml.safe_load(read_regular(Path(file), _MAX_FILE_BYTES).decode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise usage_error(f"`{file}` cannot be read: {reason}", "name a file of prices") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise usage_error(f"`{file}` is not YAML", fix) from None
    day: Any = body.get("date") if isinstance(body, Mapping) else None
    rows: Any = body.get("prices") if isinstance(body, Mapping) else None
    if not isinstance(day, date) or not isinstance(rows, Mapping) or not rows:
        raise usage_error(f"`{file}` has no `date` or no `prices`", fix)
    prices = []
    for name, value in rows.items():
        dollars = finite_number(value)
        if dollars is None or not 0 <= dollars < _MAX_PRICE:
            raise usage_error(f"`{file}`: `{value}` is no price of `{name}`", fix)
        prices.append(_own_price(str(name), dollars, file, day))
    return tuple(prices)
