"""Finds what files of a folder declare in SPEC: losses, advantage estimators, reward kinds. Loads no torch."""

import importlib
import pkgutil
from typing import TypeVar

Spec = TypeVar("Spec")


def specs_in(package: str, kind: type[Spec]) -> list[Spec]:
    """SPEC of each module of the package that has one of this kind, by the modules' names."""
    names = [module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    declared = [getattr(importlib.import_module(f"{package}.{name}"), "SPEC", None) for name in sorted(names)]
    return [spec for spec in declared if isinstance(spec, kind)]
