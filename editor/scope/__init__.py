"""Which lines of a file an edit can touch, so that a model is given these and not the whole file."""

from editor.scope.finding import regions, whole_file
from editor.scope.keeping import region_kept
from editor.scope.splicing import cut, holds, splice
from editor.scope.types import Region, Scope

__all__ = ["Region", "Scope", "cut", "holds", "region_kept", "regions", "splice", "whole_file"]
