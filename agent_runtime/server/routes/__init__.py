"""The routes, a file a group; each makes a router from the service's parts."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter

from agent_runtime.http.routes.apply import apply_routes
from agent_runtime.http.routes.files import files_routes
from agent_runtime.http.routes.health import health_routes
from agent_runtime.http.routes.metrics import metrics_routes
from agent_runtime.http.routes.openai import openai_routes
from agent_runtime.http.routes.page import page_routes
from agent_runtime.http.routes.sessions import sessions_routes
from agent_runtime.http.routes.workspaces import workspaces_routes
from agent_runtime.http.service import Service

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
