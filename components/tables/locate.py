"""Find files behind a local path or an fsspec URI and bring remote ones here for reading."""

from __future__ import annotations

import glob
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from components.core.errors import PilotlineError, TransientError, UserError, one_line

ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 0.5
CONNECT_SECONDS = 10
READ_SECONDS = 60
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")
HOPELESS = {  # errors of clients, by name, that another attempt cannot mend
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "InvalidURL",
    "ParamValidationError",
}
T = TypeVar("T")


@dataclass
class LocalFile:
    """A file that can be read here. `uri` is what it is called in messages and lineage: no credentials."""

    uri: str
    name: str
    path: Path
    sha256: str = ""


@contextmanager
def located(uri: str, suffixes: Sequence[str]) -> Iterator[list[LocalFile]]:
    """The files behind `uri`, sorted by name; remote ones are copied to a folder that is removed on leaving.

    Args:
        uri: a file, a folder (searched with its sub-folders) or a glob; local or fsspec.
        suffixes: which files of a folder are data (also with .gz); empty for all. Hidden names never are.

    Raises:
        UserError: nothing there, access refused, or a protocol whose package is absent.
        TransientError: the host did not answer after bounded retries.
    """
    if uri.startswith("file://"):
        uri = uri.removeprefix("file://")
    if not REMOTE.match(uri):
        yield _local(uri, suffixes)
        return
    with tempfile.TemporaryDirectory(prefix="pilotline-source-") as folder:
        yield _remote(uri, suffixes, Path(folder))


def without_credentials(uri: str) -> str:
    """The URI without user, password, query and fragment, which may hold secrets."""
    parts = urlsplit(uri)
    if not parts.scheme or not parts.netloc:
        return uri.partition("?")[0] if REMOTE.match(uri) else uri
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _local(uri: str, suffixes: Sequence[str]) -> list[LocalFile]:
    path = Path(uri).expanduser()
    try:
        if path.is_dir():
            found = [item for item in path.rglob("*") if item.is_file() and _is_data(item.relative_to(path), suffixes)]
            what = f"the folder holds no data file ({', '.join(suffixes) or 'any'})"
        elif path.exists():
            found, what = [path], ""
        elif glob.has_magic(uri):
            matches = (Path(item) for item in glob.glob(str(path), recursive=True))
            found = [item for item in matches if item.is_file() and not item.name.startswith(".")]
            what = "no file matches"
        else:
            found, what = [], "no such file or folder"
    except OSError as error:
        raise UserError(f"{uri}: cannot be looked at ({error.strerror}); check the path and its rights") from error
    if not found:
        raise UserError(f"{uri}: {what}; check source.uri (relative to {Path.cwd()})")
    for item in found:
        try:
            item.open("rb").close()
        except OSError as error:
            raise UserError(f"{item}: cannot be read ({error.strerror}); check its rights") from error
    return [LocalFile(str(item), item.name, item) for item in sorted(found)]


def _is_data(path: Path, suffixes: Sequence[str]) -> bool:
    if any(part.startswith((".", "_")) for part in path.parts):
        return False
    return not suffixes or path.name.lower().removesuffix(".gz").endswith(tuple(suffixes))


def _remote(uri: str, suffixes: Sequence[str], folder: Path) -> list[LocalFile]:
    shown = without_credentials(uri)
    fs, root = _filesystem(uri, shown)
    paths = attempt(lambda: _list(fs, root, suffixes), shown)
    if not paths:
        raise UserError(f"{shown}: no file there; check source.uri and the rights of the credentials in use")
    files = []
    for number, path in enumerate(paths):
        name = path.partition("?")[0].rstrip("/").rpartition("/")[2] or "data"
        file = LocalFile(without_credentials(fs.unstrip_protocol(path)), name, folder / str(number))
        attempt(partial(fs.get_file, path, str(file.path)), file.uri)
        files.append(file)
    return files


def _filesystem(uri: str, shown: str) -> tuple[Any, str]:
    import fsspec

    protocol = uri.partition("::")[0].partition("://")[0]
    try:
        fs, root = fsspec.core.url_to_fs(uri, **_options(protocol))
    except ImportError as error:
        raise UserError(f"{shown}: {protocol}:// needs a package that is absent ({one_line(error)})") from error
    except (ValueError, TypeError) as error:
        known = ", ".join(sorted({"file", "s3", "gs", "https", *_near(protocol)}))
        why = one_line(error).replace(uri, shown)
        raise UserError(f"{shown}: cannot be opened ({why}); protocols such as {known} work") from error
    fs.invalidate_cache()
    return fs, root


def _near(protocol: str) -> list[str]:
    import difflib

    import fsspec

    return difflib.get_close_matches(protocol, fsspec.available_protocols(), n=2)


def _options(protocol: str) -> dict[str, Any]:
    """Bounded waits for the protocols whose defaults wait for minutes."""
    if protocol in ("http", "https"):
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        return {"client_kwargs": {"timeout": timeout}}
    if protocol in ("s3", "s3a"):
        waits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": 1}}
        return {"config_kwargs": waits}
    return {}


def _list(fs: Any, root: str, suffixes: Sequence[str]) -> list[str]:
    if glob.has_magic(root) and "http" not in fs.protocol:
        return sorted(path for path in fs.glob(root) if fs.isfile(path))
    if "http" in fs.protocol or fs.isfile(root):
        return [root]
    found = fs.find(root) if fs.exists(root) else []
    return sorted(path for path in found if _is_data(Path(path.removeprefix(root)), suffixes))


def attempt(action: Callable[[], T], shown: str, attempts: int = ATTEMPTS) -> T:
    """Run an action against a host, again after a pause where trying again can help.

    Raises:
        UserError: the host says no: nothing there, or access refused.
        TransientError: it still fails after the last attempt.
    """
    pause = FIRST_PAUSE_SECONDS
    for number in range(1, attempts + 1):
        try:
            return action()
        except PilotlineError:
            raise
        except FileNotFoundError as error:
            raise UserError(f"{shown}: no such file; check source.uri") from error
        except Exception as error:
            if refused := _refusal(error):
                raise UserError(f"{shown}: {refused}; check source.uri and the credentials in use") from error
            if number == attempts:
                told = f"{shown}: no answer after {attempts} attempts ({type(error).__name__}); run again later"
                raise TransientError(told) from error
            time.sleep(pause)
            pause *= 2
    raise AssertionError("unreachable: attempts is at least 1")


def _refusal(error: Exception) -> str:
    """Why the host refused for good, or an empty text where trying again can help."""
    status = getattr(error, "status", None) or getattr(error, "code", 0)
    if isinstance(status, int) and 400 <= status < 500 and status not in (408, 425, 429):
        return f"the host refuses with status {status}"
    if isinstance(error, PermissionError):
        return "access is refused"
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & HOPELESS:
        return f"it cannot be asked for ({type(error).__name__})"
    return "" if isinstance(error, OSError) or _of_network(error) else f"{type(error).__name__}"


def _of_network(error: Exception) -> bool:
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(packages & {"aiohttp", "asyncio", "botocore", "google", "gcsfs", "requests", "urllib3"})
