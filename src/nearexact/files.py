"""Output files that are never half written, and never written over an input.

The old file stays in place until the new one is complete: the new content goes to a hidden temporary file in the same
folder, which then takes the target's place in one step. The temporary file's name carries the writing process, so that
the next writer can remove what a killed one has left behind.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

AnyPath = str | os.PathLike[str]


@contextmanager
def replacing(path: AnyPath) -> Iterator[Path]:
    """A temporary file to write to, which replaces `path` when the block ends; after an error, `path` is unchanged.

    If `path` is a link, the file that it points to is replaced. The result has the permissions of any new file.
    """
    target = Path(os.path.realpath(check_output(path)))
    _remove_abandoned(target)
    temporary = _temporary(target)
    try:
        temporary.touch()
        permissions = temporary.stat().st_mode
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # else a power failure could leave an empty file under the target's name
        temporary.chmod(permissions)  # some libraries set others
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: AnyPath, text: str) -> None:
    """Replace a file by this text."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_output(path: AnyPath, suffixes: tuple[str, ...] = ()) -> Path:
    """The path, if a file can be written there, which is tried: to be asked before hours go into its content."""
    path = Path(path)
    if suffixes and not path.name.endswith(suffixes):
        choices = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise ValueError(f"the output must be a {choices} file, got {str(path)!r}")
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "device or pipe"
        raise ValueError(f"the output must be a file, but {str(path)!r} is a {kind}")
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} to")
    temporary = _temporary(Path(os.path.realpath(path)))
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise OSError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
    return path


def check_apart(outputs: Mapping[str, AnyPath], inputs: Mapping[str, AnyPath]) -> None:
    """Raise a ValueError if an output is also an input or another output, through links or another spelling too.

    The keys are what the message calls the files.
    """
    before = list(inputs.items())
    for name, path in outputs.items():
        for other, taken in before:
            if is_same_file(path, taken):
                raise ValueError(f"{name} {os.fspath(path)!r} would overwrite {other} {os.fspath(taken)!r}")
        before.append((name, path))


def is_same_file(one: AnyPath, other: AnyPath) -> bool:
    """Whether two paths lead to the same file, or would if it were there."""
    with suppress(OSError):
        return os.path.samefile(one, other)
    (folder, name), (other_folder, other_name) = (os.path.split(os.path.realpath(path)) for path in (one, other))
    with suppress(OSError):
        return name == other_name and os.path.samefile(folder, other_folder)
    return False  # a folder that is not there: nothing can be overwritten


def _temporary(target: Path) -> Path:
    """A name next to the target's that no other file has."""
    return target.with_name(f".{target.name}.{_machine()}-{os.getpid()}-{uuid.uuid4().hex}")


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files for this target whose writers no longer run; those of other machines may be in use."""
    if os.name != "posix":  # elsewhere there is no harmless way to ask whether a process runs
        return
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{_machine()}-(\d+)-[0-9a-f]{{32}}")
    with suppress(OSError):  # clearing up is a courtesy: the output does not depend on it
        for name in os.listdir(target.parent):
            match = pattern.fullmatch(name)
            if match and not _is_running(int(match[1])):
                target.with_name(name).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks whether the process exists
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def _machine() -> str:
    """A short name for the space in which process numbers are unique: this host, or this container on it."""
    namespace = ""
    with suppress(OSError):  # only Linux has it
        namespace = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {namespace}".encode()).hexdigest()[:8]
