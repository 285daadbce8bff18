"""`hunk token new | list | revoke`: the access tokens of a service."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer

from agent_runtime.cli.options import JSON
from agent_runtime.cli.render import print_faults_as_json, print_table
from agent_runtime.config import resolve
from agent_runtime.errors import BadRequest
from agent_runtime.request_context import ALL_SCOPES, AccessScope
from agent_runtime.server.token_file import NAME, AccessToken, TokenFile, TokenSet, make_token

tokens = typer.Typer(name="token", help="Make, list and revoke the tokens of a service.", no_args_is_help=True)

FILE = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="FILE", help="The token file. [the setting `tokens`, else tokens.json next to config.toml]"
    ),
]


@tokens.command("new")
@print_faults_as_json
def new_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token: who or what it is for.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="What it may do: apply, read or admin; may be repeated. [apply and read]"),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", help="Tokens of one tenant share workspaces, sessions and cache. [NAME]"),
    ] = None,
    days: Annotated[float | None, typer.Option("--days", min=0.0, help="Days until it expires. [never]")] = None,
    file: FILE = None,
    as_json: JSON = False,
) -> None:
    """Make a token and print it once: only its hash is stored."""
    _check_name(name, "name")
    _check_name(tenant or name, "tenant")
    scopes = _parse_scopes(scope or ["apply", "read"])
    now = datetime.now(UTC).replace(microsecond=0)
    expires = None if days is None else now + timedelta(days=days)
    made, text = make_token(name, tenant or name, scopes, now, expires)

    def add(known: TokenSet) -> TokenSet:
        if known.find_token(name) is not None:
            raise BadRequest(
                f"there is a token {name!r} already; choose another name, or revoke it first", field="name"
            )
        return known.add_token(made)

    store = _open_file(file)
    store.change(add)
    if as_json:
        typer.echo(json.dumps({**_describe_token(made), "token": text, "file": str(store.path)}))
        return
    typer.echo(text)
    typer.echo(f"its hash is stored in {store.path}: the token itself is shown only this once", err=True)
    typer.echo(f"a service accepts it when it runs with --tokens {store.path}", err=True)


@tokens.command("list")
@print_faults_as_json
def list_command(file: FILE = None, as_json: JSON = False) -> None:
    """List the tokens and what each may do."""
    rows = [_describe_token(token) for token in _open_file(file).read().tokens]
    if as_json:
        typer.echo(json.dumps({"tokens": rows}))
        return
    cells = ([", ".join(row[key]) if key == "scopes" else row[key] or "never" for key in row] for row in rows)
    print_table(("name", "id", "tenant", "scopes", "created", "expires"), cells)


@tokens.command("revoke")
@print_faults_as_json
def revoke_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name or ID.")],
    file: FILE = None,
    as_json: JSON = False,
) -> None:
    """Revoke a token: services refuse it from now on, running ones too."""
    revoked: list[AccessToken] = []

    def remove(known: TokenSet) -> TokenSet:
        found = known.find_token(name)
        if found is None:
            raise BadRequest(f"there is no token {name!r}; `hunk token list` lists them", field="name")
        revoked.append(found)
        return known.remove_token(found)

    _open_file(file).change(remove)
    if as_json:
        typer.echo(json.dumps({"revoked": _describe_token(revoked[0])}))
    else:
        typer.echo(f"{revoked[0].name} ({revoked[0].id}) is revoked")


def _open_file(given: Path | None) -> TokenFile:
    resolved = resolve(os.environ)
    usual = (resolved.file.path or platformdirs.user_config_path("hunk", appauthor=False) / "config.toml").parent
    return TokenFile((given or resolved.values.tokens or usual / "tokens.json").expanduser().absolute())


def _check_name(name: str, field: str) -> None:
    if not NAME.fullmatch(name):
        raise BadRequest(
            f"{field} {name!r}: use up to 64 letters, digits, '.', '_' and '-', and begin with a letter or digit",
            field=field,
        )


def _parse_scopes(names: list[str]) -> frozenset[AccessScope]:
    unknown = [name for name in names if name not in ALL_SCOPES]
    if unknown:
        raise BadRequest(f"there is no scope {unknown[0]!r}; there are {', '.join(sorted(ALL_SCOPES))}", field="scope")
    return frozenset(scope for scope in ALL_SCOPES if scope in names)


def _describe_token(token: AccessToken) -> dict[str, Any]:
    return {
        "name": token.name,
        "id": token.id,
        "tenant": token.tenant,
        "scopes": sorted(token.scopes),
        "created": token.created.isoformat(),
        "expires": None if token.expires is None else token.expires.isoformat(),
    }
