"""Which lines of a file an edit can touch, so that a model is given these and not the whole file."""

from editor.scope.regions import region_kept, regions, whole_file
from editor.scope.types import Region, Scope, cut, holds, splice

__all__ = ["Region", "Scope", "cut", "holds", "region_kept", "regions", "splice", "whole_file"]
