"""The routes of the service, grouped by subject: `ROUTES` has a function for each group that builds its router."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter

from agent_runtime.server.openai.routes import build_openai_routes
from agent_runtime.server.routes.apply import build_apply_routes
from agent_runtime.server.routes.sessions import build_session_routes
from agent_runtime.server.routes.system import build_health_routes, build_metrics_routes, build_page_routes
from agent_runtime.server.routes.workspaces import build_file_routes, build_workspace_routes
from agent_runtime.server.service import Service

ROUTES: tuple[Callable[[Service], APIRouter], ...] = (
    build_health_routes,
    build_metrics_routes,
    build_page_routes,
    build_apply_routes,
    build_openai_routes,
    build_workspace_routes,
    build_file_routes,
    build_session_routes,
)
