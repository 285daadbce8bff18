"""The routes, a file a group; each makes a router from the service's parts."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter

from agent_runtime.server.dependencies import Service
from agent_runtime.server.openai.routes import openai_routes
from agent_runtime.server.routes.apply import apply_routes
from agent_runtime.server.routes.sessions import sessions_routes
from agent_runtime.server.routes.system import health_routes, metrics_routes, page_routes
from agent_runtime.server.routes.workspaces import files_routes, workspaces_routes

ROUTES: tuple[Callable[[Service], APIRouter], ...] = (
    health_routes,
    metrics_routes,
    page_routes,
    apply_routes,
    openai_routes,
    workspaces_routes,
    files_routes,
    sessions_routes,
)
