"""`each`: as `pytest.mark.parametrize`, but all cases are one test: for hundreds that are quicker than pytest is with one."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

__all__ = ["each"]


def each(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test with every one of these values under `names`. An error names the case that it is of."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [dict(zip(keys, value if len(keys) > 1 else (value,), strict=True)) for value in values]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            for case in cases:
                try:
                    test(**fixtures, **case)
                except BaseException as error:
                    error.add_note(f"with {case}")
                    raise

        parameters = inspect.signature(test).parameters.values()
        rest = [parameter for parameter in parameters if parameter.name not in keys]
        run.__signature__ = inspect.Signature(rest)  # type: ignore[attr-defined]
        return run

    return decorate
