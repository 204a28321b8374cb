"""Where a display gets its numbers: a fitted estimator, a pipeline that ends with one, a model, or a file."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from eigenveil.errors import require
from eigenveil.model import Model

__all__ = ["json_in", "last_step", "model_from", "path_of"]


def model_from(source: Any) -> Model:
    """The model of a fitted estimator, or in a file, or the model itself.

    >>> model_from([1, 2])
    Traceback (most recent call last):
    ...
    ValueError: give a fitted estimator, a Model or the path of a model file, got a list
    """
    if isinstance(source, Model):
        return source
    # A text is always a path: no estimator is one.
    path = path_of(source)
    if path is not None:
        return Model.load(path)
    estimator = last_step(source)
    wanted = "give a fitted estimator, a Model or the path of a model file"
    require(hasattr(estimator, "fit"), f"{wanted}, got a {type(source).__name__}")
    # Before `model_` is looked for, so that an estimator that was not fitted says so.
    check_is_fitted(estimator)
    found = getattr(estimator, "model_", None)
    require(isinstance(found, Model), f"{wanted}, got a {type(estimator).__name__}, which has no model_")
    assert isinstance(found, Model)
    return found


def last_step(source: Any) -> Any:
    """The estimator at the end of a pipeline, or the estimator itself."""
    return source.steps[-1][1] if isinstance(source, Pipeline) else source


def path_of(source: Any) -> Path | None:
    """The path, if that is what was given."""
    return Path(source) if isinstance(source, str | os.PathLike) else None


def json_in(path: Path, key: str, *, written_by: str) -> Any:
    """What a .json file has under `key`; the error says which command writes such a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: give a file that {written_by} has written") from error
    good = isinstance(found, Mapping) and found.get(key) is not None
    require(good, f"{path} has no {key!r}: give a file that {written_by} has written")
    return found[key]
