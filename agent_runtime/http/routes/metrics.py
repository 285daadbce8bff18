"""`/metrics` for Prometheus and `/stats` for the page: what the service has done and what it does now."""

from __future__ import annotations

from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Header
from fastapi.responses import Response

from agent_runtime.http.access import needs
from agent_runtime.http.service import Service


def metrics_routes(service: Service) -> APIRouter:
    """Both routes; whoever may read may ask."""
    router = APIRouter(tags=["operations"], dependencies=[Depends(needs("read"))])

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(accept: Annotated[str, Header()] = "") -> Response:
        """All counters in Prometheus' text format, or in OpenMetrics' where Accept asks for it."""
        content, content_type = await run_sync(service.metering.exposition, accept, limiter=service.threads)
        return Response(content, media_type=content_type)

    @router.get("/stats")
    async def stats() -> dict[str, Any]:
        """Queue, cache and the rates of the last five minutes."""
        counted = await run_sync(service.metering.stats, limiter=service.threads)
        return {"model": {"name": service.model.name, "ready": service.model.is_ready}} | counted

    return router
