"""`/docs`: the OpenAPI description as a page. It is made here, since FastAPI's pages load scripts from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from agent_runtime import page

TEMPLATE = "docs.html.jinja"
METHODS = ("get", "post", "put", "patch", "delete")
LAST = ("health", "operations")
"""Tags of the routes that fewer readers look for."""


def render_docs(description: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI 3.1 description, with all of its text escaped."""
    schemas: Mapping[str, Any] = description["components"]["schemas"]

    def resolve(schema: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = schemas.get(_find_name(schema), schema)
        return found

    environment = Environment(autoescape=True)
    environment.filters |= {"prose": _format_prose, "kind": _format_kind, "resolve": resolve}
    tags: dict[str, list[Mapping[str, Any]]] = {}
    for path, routes in description["paths"].items():
        for method in METHODS:
            if method in routes:
                route = routes[method]
                tags.setdefault(route["tags"][0], []).append({**route, "path": path, "method": method.upper()})
    ordered = {tag: tags[tag] for tag in sorted(tags, key=lambda tag: tag in LAST)}
    template = environment.from_string(files(page).joinpath(TEMPLATE).read_text(encoding="utf-8"))
    return template.render(info=description["info"], tags=ordered, schemas=schemas)


def _find_name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _format_prose(text: str | None) -> Markup:
    """Return paragraphs, with what stands between backticks as code."""
    parts = [str(escape(part.strip())) for part in (text or "").split("\n\n") if part.strip()]
    marked = [re.sub(r"`([^`]+)`", r"<code>\1</code>", part) for part in parts]
    return Markup("".join(f"<p>{part}</p>" for part in marked))


def _format_kind(schema: Mapping[str, Any]) -> Markup:
    """Return the type of a value in words; a schema with a name is a link to it."""
    if name := _find_name(schema):
        return Markup('<a href="#schema-{0}">{0}</a>').format(name)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return Markup(" or ").join(Markup("<code>{}</code>").format(value) for value in values)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return Markup(" or ").join(_format_kind(each) for each in schema[word])
    if schema.get("type") == "array":
        return Markup("list of {}").format(_format_kind(schema.get("items", {})))
    if isinstance(more := schema.get("additionalProperties"), Mapping) and not schema.get("properties"):
        return Markup("object of {}").format(_format_kind(more))
    return escape(str(schema.get("type", "any")))
