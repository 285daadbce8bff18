"""Errors of the commands and of the service, with their exit codes and HTTP statuses.

HunkError
├── BadRequest              exit 2, HTTP 400   the request itself is malformed
│   ├── Unsupported         exit 2, HTTP 422   a field or value that this version does not know
│   ├── NoSuchRoute         exit 2, HTTP 404   the service has no such path
│   ├── MethodNotAllowed    exit 2, HTTP 405   the path is there, but not for this method
│   ├── UnsupportedMedia    exit 2, HTTP 415   the body is not sent as JSON
│   └── KeyReused           exit 2, HTTP 422   an Idempotency-Key was used before with another body
├── BadFile                 exit 2, HTTP 422   the file cannot be edited: binary, no text, too large, a directory
│   ├── FileMissing         exit 2, HTTP 404
│   ├── OutsideRoot         exit 2, HTTP 403
│   ├── WorkspaceMissing    exit 2, HTTP 404
│   └── TooLarge            exit 2, HTTP 413
│       └── HeadersTooLarge exit 2, HTTP 431   the request's headers are too long, or too many
├── Unauthorized            exit 2, HTTP 401   no token, or an unknown one
├── RequestTooSlow          exit 1, HTTP 408   the request's body did not come in time
├── TooManyConnections      exit 1, HTTP 503   the service has no connection left
├── TokensUnreadable        exit 2, HTTP 503   the service cannot read its token file, and admits nobody
├── Forbidden               exit 2, HTTP 403   the token lacks the scope
├── ForeignHost             exit 2, HTTP 403   the request names another host, or comes from another host's page
├── TooManyRequests         exit 1, HTTP 429   over the rate or the quota of a tenant
├── SessionMissing          exit 2, HTTP 404   there is no such session, or it was idle for too long
├── Conflict                exit 2, HTTP 409   the name is taken, or cannot be removed
│   └── SessionBusy         exit 2, HTTP 409   another call of the session is running
├── SnapshotGone            exit 2, HTTP 410   the version to compare with is no longer kept
├── NotIndexed              exit 1, HTTP 503   the workspace's files are not indexed (yet)
├── Stale                   exit 3, HTTP 409   the file is not the one that the sender expected
├── EditRefused             exit 3, HTTP 422   the edit does not apply; carries the editor's reasons
├── ModelUnavailable        exit 4, HTTP 503   the model cannot be found or loaded
│   ├── Busy                exit 4, HTTP 429   too many edits wait for the model
│   ├── Ending              exit 4, HTTP 503   the service is shutting down
│   ├── UnknownModel        exit 4, HTTP 422
│   ├── DownloadFailed      exit 4, HTTP 503
│   └── CorruptModel        exit 4, HTTP 503
├── ModelFailed             exit 1, HTTP 500   the model failed on this edit
├── DeadlinePassed          exit 1, HTTP 504   the model did not finish in time
├── Cancelled               exit 130, HTTP 499 the client has disconnected
└── NoConnection            exit 5             the service does not answer
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from agent_runtime.types import Reason, Usage


class HunkError(Exception):
    """A fault of ours; the root of all, each with a message for a person that says what to do."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal"
    """Stable short name; the last part of the problem's `type` URI."""
    retry_after_s: float | None = None
    """Seconds until the same request may succeed; None if waiting does not help."""
    usage: Usage | None = None
    """What the model computed before; None if it was not asked, or that is not known."""


class BadRequest(HunkError):
    """The request is malformed."""

    exit_code = 2
    http_status = 400
    kind = "malformed"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class Unsupported(BadRequest):
    """A field, or a value of it, that this version does not support; `field` names it."""

    http_status = 422
    kind = "unsupported"


class NoSuchRoute(BadRequest):
    """The service has no such path."""

    http_status = 404
    kind = "no-such-route"


class MethodNotAllowed(BadRequest):
    """The path does not take this method; `Allow` names those that it takes."""

    http_status = 405
    kind = "method-not-allowed"


class UnsupportedMedia(BadRequest):
    """The body is not sent as JSON."""

    http_status = 415
    kind = "unsupported-media-type"


class KeyReused(BadRequest):
    """The Idempotency-Key was sent before with another body; a new request needs a new key."""

    http_status = 422
    kind = "idempotency-key-reused"


class BadFile(HunkError):
    """The file cannot be edited as it is."""

    exit_code = 2
    http_status = 422
    kind = "bad-file"


class FileMissing(BadFile):
    """There is no such file."""

    http_status = 404
    kind = "not-found"


class NoSuchWrite(BadFile):
    """There is no such write to undo, or its old bytes are gone."""

    http_status = 404
    kind = "no-such-write"


class OutsideRoot(BadFile):
    """The path leads out of the service's root, or the service has none."""

    http_status = 403
    kind = "outside-root"


class WorkspaceMissing(BadFile):
    """There is no such workspace."""

    http_status = 404
    kind = "no-such-workspace"


class TooLarge(BadFile):
    """The file, the edit or the prompt is over a limit."""

    http_status = 413
    kind = "too-large"


class HeadersTooLarge(TooLarge):
    """The request's headers are too long, or too many."""

    http_status = 431
    kind = "headers-too-large"


class RequestTooSlow(HunkError):
    """The request's body did not come in time."""

    http_status = 408
    kind = "request-too-slow"


class TooManyConnections(HunkError):
    """The service has as many connections as it takes."""

    http_status = 503
    kind = "too-many-connections"
    retry_after_s = 1.0


class Unauthorized(HunkError):
    """The request has no token, or one that the service does not know."""

    exit_code = 2
    http_status = 401
    kind = "unauthorized"


class TokensUnreadable(HunkError):
    """The token file cannot be read, or is not one; until it can be, nobody is let in."""

    exit_code = 2
    http_status = 503
    kind = "tokens-unreadable"
    retry_after_s = 5.0


class Forbidden(HunkError):
    """The token lacks the scope that this needs."""

    exit_code = 2
    http_status = 403
    kind = "forbidden"


class ForeignHost(HunkError):
    """The request names another host."""

    exit_code = 2
    http_status = 403
    kind = "foreign-host"


class TooManyRequests(HunkError):
    """The tenant is over its rate or its quota; `retry_after_s` says when it may try again."""

    http_status = 429
    kind = "too-many-requests"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, limit: str = "") -> None:
        """`limit` names the setting that was reached, where it is one."""
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.limit = limit


class SessionMissing(HunkError):
    """There is no such session; it may have been idle for too long."""

    exit_code = 2
    http_status = 404
    kind = "no-such-session"


class Conflict(HunkError):
    """What is asked for contradicts what is there already."""

    exit_code = 2
    http_status = 409
    kind = "conflict"


class SessionBusy(Conflict):
    """The session works on another call; a conversation takes one after the other."""

    kind = "session-busy"
    retry_after_s = 1.0


class SnapshotGone(HunkError):
    """The version is not kept any more; read the snapshot again."""

    exit_code = 2
    http_status = 410
    kind = "snapshot-gone"


class NotIndexed(HunkError):
    """The workspace's files are not tokenised yet, or cannot be."""

    http_status = 503
    kind = "not-indexed"
    retry_after_s = 2.0


class Stale(HunkError):
    """The file's hash is not the one expected; `current_sha256` is what it is now."""

    exit_code = 3
    http_status = 409
    kind = "stale"

    def __init__(self, message: str, *, current_sha256: str) -> None:
        super().__init__(message)
        self.current_sha256 = current_sha256


class EditRefused(HunkError):
    """The edit does not apply; `reasons` are the editor's, one for every file that is refused."""

    exit_code = 3
    http_status = 422
    kind = "edit-refused"

    def __init__(self, message: str, *, reasons: tuple[Reason, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class ModelUnavailable(HunkError):
    """The model cannot be had or loaded, or is not loaded yet; `reasons` say why no rule could do without it."""

    exit_code = 4
    http_status = 503
    kind = "model-unavailable"
    retry_after_s: float | None = 5.0
    reasons: tuple[Reason, ...] = ()


class RulesOnly(ModelUnavailable):
    """There is no model, as the service or the command was started; reasons as in ModelUnavailable."""

    kind = "rules-only"
    retry_after_s = None


class Busy(ModelUnavailable):
    """As many edits wait for the model as may; the same request may succeed a little later."""

    http_status = 429
    kind = "busy"
    retry_after_s = 1.0


class Ending(ModelUnavailable):
    """The service is ending; another one, or this one once it has started again, may take the request."""

    kind = "ending"


class UnknownModel(ModelUnavailable):
    """No model of that name, and no such file or folder."""

    http_status = 422
    kind = "unknown-model"
    retry_after_s = None


class DownloadFailed(ModelUnavailable):
    """No source could give the model."""

    kind = "download-failed"


class CorruptModel(ModelUnavailable):
    """The model's file does not have the SHA-256 that it must have, or cannot be read."""

    kind = "corrupt-model"
    retry_after_s = None


class ModelFailed(HunkError):
    """The model broke down over this edit; others go on."""

    kind = "model-failed"


class DeadlinePassed(HunkError):
    """The model did not finish in the time that the service allows."""

    http_status = 504
    kind = "deadline-passed"


class Cancelled(HunkError):
    """Whoever asked for the edit has left."""

    exit_code = 130
    http_status = 499
    kind = "cancelled"


class NoConnection(HunkError):
    """The service at the URL does not answer."""

    exit_code = 5
    http_status = 502
    kind = "no-connection"


LEAST_SIMILARITY = 0.6
"""Minimum similarity, in [0, 1], of a suggested name."""


def find_nearest(name: str, known: Iterable[str], *, by_prefix: bool = False) -> str | None:
    """Return the most similar known name, or None; `by_prefix` gives more weight to a common beginning."""
    from rapidfuzz import process
    from rapidfuzz.distance import OSA, JaroWinkler

    scorer = JaroWinkler.normalized_similarity if by_prefix else OSA.normalized_similarity
    found = process.extractOne(name, list(known), scorer=scorer, score_cutoff=LEAST_SIMILARITY)
    return found[0] if found else None
