"""`/healthz`, `/readyz`, `/metrics`, `/stats`, the web page, and `/docs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Header, Request, Response

from agent_runtime import page
from agent_runtime.errors import NoSuchRoute
from agent_runtime.server.auth import require
from agent_runtime.server.docs_page import render_docs
from agent_runtime.server.service import Service


def build_health_routes(service: Service) -> APIRouter:
    """Build the routes `/healthz` and `/readyz`, which need no token."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answer whenever the process runs."""
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Answer once the model is loaded and until the service shuts down; else 503."""
        service.drain.check()
        service.model.check_ready()
        return {"status": "ready", "model": service.model.name}

    return router


def build_metrics_routes(service: Service) -> APIRouter:
    """Build the routes `/metrics` and `/stats`, which need the scope `read`."""
    router = APIRouter(tags=["operations"], dependencies=[Depends(require("read"))])

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(accept: Annotated[str, Header()] = "") -> Response:
        """Return all metrics in Prometheus' text format, or in OpenMetrics' if Accept asks for it."""
        content, content_type = await run_sync(service.metering.render, accept, limiter=service.threads)
        return Response(content, media_type=content_type)

    @router.get("/stats")
    async def stats() -> dict[str, Any]:
        """Return the queue, the cache and the rates of the last five minutes."""
        counted = await run_sync(service.metering.stats, limiter=service.threads)
        return {"model": {"name": service.model.name, "ready": service.model.is_ready}} | counted

    return router


MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the page: it may load and request only what comes from this service."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
"""Headers of the page, in addition to `uvicorn_server.SAFE_HEADERS`."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    content: bytes
    media_type: str
    cache_control: str

    def to_response(self, request: Request) -> Response:
        """Return the file, or 304 if the client has it."""
        tag = f'"{sha256(self.content).hexdigest()[:32]}"'
        headers = {**HEADERS, "ETag": tag, "Cache-Control": self.cache_control}
        known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
        if tag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def build_page_routes(service: Service) -> APIRouter:
    """Build the page's routes. They need no token: the page has no data and fetches it with a token."""
    assets = load_assets()
    described: list[Asset] = []
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        """Return the page."""
        return assets[""].to_response(request)

    @router.api_route("/docs", methods=["GET", "HEAD"])
    async def docs(request: Request) -> Response:
        """Return the description of the API as a page."""
        if not described:
            html = link_assets(render_docs(request.app.openapi()).encode(), assets)
            described.append(Asset(html, MEDIA_TYPES[".html"], "no-cache"))
        return described[0].to_response(request)

    @router.api_route("/static/{place:path}", methods=["GET", "HEAD"])
    async def static(place: str, request: Request) -> Response:
        """Return a file of the page."""
        if place not in assets or not place:
            raise NoSuchRoute(f"the page has no file {place!r}; load it again, if the service is a newer one now")
        return assets[place].to_response(request)

    return router


def load_assets() -> dict[str, Asset]:
    """Load the page's files by their path below `/static/`, which has a hash of all; the page itself is at ''."""
    found = {each.name: each.read_bytes() for each in files(page).iterdir() if _find_suffix(each.name)}
    version = sha256(b"".join(found[name] for name in sorted(found))).hexdigest()[:16]
    html = found.pop("index.html")
    assets = {
        f"{version}/{name}": Asset(content, MEDIA_TYPES[_find_suffix(name)], "public, max-age=31536000, immutable")
        for name, content in found.items()
    }
    return assets | {"": Asset(link_assets(html, assets), MEDIA_TYPES[".html"], "no-cache")}


def link_assets(html: bytes, assets: Mapping[str, Asset]) -> bytes:
    """Return a page whose links to `static/` have the hash of the files."""
    version = next(place for place in assets if place).partition("/")[0]
    return html.replace(b'"static/', f'"static/{version}/'.encode())


def _find_suffix(name: str) -> str:
    """Return the suffix of a file of the page, '' for other files."""
    return next((suffix for suffix in MEDIA_TYPES if name.endswith(suffix)), "")
