"""`/healthz` and `/readyz`, for whoever starts the service and balances its load."""

from __future__ import annotations

from fastapi import APIRouter

from agent_runtime.http.service import Service


def health_routes(service: Service) -> APIRouter:
    """Both routes; anybody may ask."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process answers, whatever else it does."""
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz() -> dict[str, str]:
        """The model is loaded, and the service is not ending; else 503."""
        service.drain.check()
        return {"status": "ready", "model": service.model.loaded().name}

    return router
