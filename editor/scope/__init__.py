"""Finds the lines of a file that an edit can touch, so that a model gets these and not the whole file."""

from editor.scope.regions import build_whole_scope, check_region_kept, find_regions
from editor.scope.types import Region, Scope, cut, is_confined, splice

__all__ = [
    "Region",
    "Scope",
    "build_whole_scope",
    "check_region_kept",
    "cut",
    "find_regions",
    "is_confined",
    "splice",
]
