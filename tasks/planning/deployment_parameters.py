"""Types of a deployment's parameters: Prefect's server validates with their schema, and its UI builds a form from it.

The types only add schema. Values are checked where they are used, with the same messages for every way to start the
flow. The title of an alternative is its button in the form; an error describes the alternative whose type fits.
"""

from typing import Annotated, Any

from pydantic import Field

from tasks.learning import recipes

_YEAR = 365 * 24 * 60  # in minutes
# Only the first alternative has a type, so that an error lists the recipes. The type is a list, because otherwise the
# form returns to this alternative with each character typed into the other. The parameter's own type rejects null.
_KNOWN = {"title": "of the project", "type": ["string", "null"], "enum": recipes.known()}
_OUTSIDE = {"title": "of a file", "pattern": r"\.py:[A-Za-z_][A-Za-z0-9_]*$"}

RecipeName = Annotated[str, Field(json_schema_extra={"anyOf": [_KNOWN, _OUTSIDE]})]
"""A recipe of the project, or `path.py:function`."""
_Count = Annotated[int, Field(json_schema_extra={"title": "number", "minimum": 0})]
_Range = Annotated[str, Field(json_schema_extra={"title": "MIN:MAX", "pattern": r"^[1-9][0-9]*:[1-9][0-9]*$"})]
Workers = _Count | _Range | None
"""Number of training workers: a number, MIN:MAX for elastic training, or None for one per GPU."""
_NUMBER_OR_NONE = [{"title": "number", "type": "integer", "minimum": 0}, {"type": "null"}]
NumWorkers = Annotated[int | str | None, Field(json_schema_extra={"anyOf": _NUMBER_OR_NONE})]
"""Number of prediction workers."""
Settings = Annotated[dict[str, Any], Field(json_schema_extra=recipes.schema() | {"title": "fields"})] | None
Name = Annotated[str, Field(json_schema_extra={"title": "name", "pattern": r"^([a-z0-9][a-z0-9-]{0,63})?$"})] | None
Limit = Annotated[float, Field(json_schema_extra={"exclusiveMinimum": 0, "maximum": _YEAR})]
Patience = Annotated[float, Field(json_schema_extra={"minimum": 0, "maximum": _YEAR})]
