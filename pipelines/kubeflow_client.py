"""A Kubeflow Pipelines client whose every call is bounded and whose errors are one line.

The SDK's own constructor retries a dead host for half a minute with tracebacks and sets no timeout on any call, so
the host is probed first and each request gets one. The token comes from $KFP_TOKEN and is never printed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from components.core.errors import PilotlineError, TransientError, UserError

TOKEN = "KFP_TOKEN"  # noqa: S105 - the variable's name
NAMESPACE = "KFP_NAMESPACE"
CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
PROBES = 3
PROBE_PAUSE_SECONDS = 1.0


def connect(host: str, namespace: str = "") -> Any:
    """A `kfp.Client` for a host that answers.

    Raises:
        UserError: no usable address, not a Kubeflow Pipelines endpoint, no valid token, or the namespace is missing.
        TransientError: nobody answers there (after three attempts, 18 seconds at most).
    """
    host = _checked(host)
    health = _probe(host)
    if health.get("multi_user") and not namespace:
        raise UserError(f"{host}: is shared by several users; name your namespace in $KFP_NAMESPACE")
    import kfp

    with warnings.catch_warnings(), answering(host):
        warnings.simplefilter("ignore")
        client = kfp.Client(host=host, existing_token=os.environ.get(TOKEN) or None, namespace=namespace)
    _bound(client)
    return client


@contextlib.contextmanager
def answering(host: str) -> Iterator[None]:
    """Turn the SDK's exceptions into ours, one line each."""
    import kfp_server_api
    import urllib3

    try:
        yield
    except PilotlineError:
        raise
    except kfp_server_api.ApiException as error:
        _refused(host, int(error.status or 0), _message(error.body) or str(error.reason))
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise TransientError(f"{host}: {_short(error)}; check the endpoint and run again") from None
    except ValueError as error:
        raise UserError(f"{host}: {_short(error)}") from None


def _checked(host: str) -> str:
    host = host.strip().rstrip("/")
    address = urllib.parse.urlsplit(host)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise UserError(f"--host {host!r}: write it with its scheme, for example http://127.0.0.1:8888")
    if address.username or address.password:
        raise UserError(f"--host: leave the credentials out of the address and set {TOKEN}")
    return host


def _probe(host: str) -> dict[str, Any]:
    """The health answer of the API server."""
    request = urllib.request.Request(f"{host}/apis/v2beta1/healthz", headers=_headers())  # noqa: S310 - scheme checked
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler())
    for attempt in range(1, PROBES + 1):
        try:
            with opener.open(request, timeout=CONNECT_SECONDS) as answer:
                return _health(host, answer.read(1 << 16))
        except urllib.error.HTTPError as error:
            if error.code < 500 or attempt == PROBES:
                _refused(host, error.code, _message(error.read(1 << 16)) or str(error.reason))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise UserError(
                    f"{host}: its certificate is not trusted; name the authority in SSL_CERT_FILE"
                ) from None
            if attempt == PROBES:
                raise TransientError(f"{host}: nobody answers ({_short(reason)}); check the address") from None
        time.sleep(PROBE_PAUSE_SECONDS)
    raise AssertionError("unreachable")


def _health(host: str, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise UserError(f"{host}: answers, but not as Kubeflow Pipelines; check the address, or log in and set {TOKEN}")


def _headers() -> dict[str, str]:
    token = os.environ.get(TOKEN)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _bound(client: Any) -> None:
    """Give every request of the client a timeout; the SDK passes none."""
    rest = client._run_api.api_client.rest_client
    original = rest.request

    def request(*args: Any, **kwargs: Any) -> Any:
        kwargs["_request_timeout"] = kwargs.get("_request_timeout") or (CONNECT_SECONDS, READ_SECONDS)
        return original(*args, **kwargs)

    rest.request = request
    logging.getLogger("urllib3").setLevel(logging.WARNING)  # its debug lines would hold request headers


def _refused(host: str, status: int, message: str) -> NoReturn:
    if status in (401, 403):
        raise UserError(f"{host}: {status}, not allowed ({_short(message)}); set {TOKEN} to a valid token") from None
    if status in {0, 429} or status >= 500:
        raise TransientError(f"{host}: {status or 'no'} answer ({_short(message)}); run again") from None
    raise UserError(f"{host}: {status}, refused: {_short(message)}") from None


def _message(body: Any) -> str:
    """The server's own words from an error body."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")
    try:
        found = json.loads(text)
    except ValueError:
        return "" if text.lstrip().startswith("<") else text
    return str(found.get("message") or found.get("error") or "") if isinstance(found, dict) else text


def _short(value: object) -> str:
    """One line, at most 300 characters, without the token."""
    text = " ".join(str(value).split())
    token = os.environ.get(TOKEN)
    return (text.replace(token, "***") if token else text)[:300]
