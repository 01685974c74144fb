# SPDX-License-Identifier: Apache-2.0
"""A method of one instance that is called through a function of ours, as long as the wrapper is installed."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""(the method, positional arguments, keyword arguments) -> result"""


class MethodWrapper:
    """Calls `around` instead of `owner.name`.

    The method is looked up at each call, so that it may be replaced in the class later. It is a bound method, as a
    scheduler of torch expects of an optimizer's `step`.
    """

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self._owner, self._name, self._around = owner, name, around
        self._earlier: Any = vars(owner).get(name)
        self._is_active = True

        def call(_: Any, *args: Any, **kwargs: Any) -> Any:
            method = self._method()
            return around(method, args, kwargs) if self._is_active else method(*args, **kwargs)

        self._bound = types.MethodType(call, owner)
        setattr(owner, name, self._bound)

    def _method(self) -> Any:
        if self._earlier is not None:
            return self._earlier
        return getattr(type(self._owner), self._name).__get__(self._owner)

    def remove(self) -> None:
        """Restore the method. Under a later wrapper of somebody else ours stays, and does nothing."""
        self._is_active = False
        if vars(self._owner).get(self._name) is not self._bound:
            return
        if self._earlier is not None:
            setattr(self._owner, self._name, self._earlier)
        else:
            delattr(self._owner, self._name)
