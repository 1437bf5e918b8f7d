"""A file is replaced by a complete one or not at all, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nearexact.files import check_output, replacing, write_text

HANGING_WRITER = """
import sys, time
from nearexact.files import replacing
with replacing(sys.argv[1]) as temporary:
    temporary.write_text("half of it")
    print("writing", flush=True)
    time.sleep(60)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start_writer(target: Path) -> subprocess.Popen[str]:
    """A process that has started to write the target and does not go on."""
    writer = subprocess.Popen([sys.executable, "-c", HANGING_WRITER, str(target)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    return writer


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a", "new, but \ud800")  # half a pair of surrogates, which UTF-8 does not have
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_the_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("new")
        temporary.chmod(0o600)  # as some libraries do
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_the_file_behind_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "a")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "a").read_text() == "new"
    assert names(tmp_path / "folder") == ["a"]


def test_what_is_not_a_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"the output must be a file, but .* is a device or pipe"):
        write_text(tmp_path / "pipe", "text")
    with pytest.raises(ValueError, match=r"the output must be a file, but .* is a folder"):
        write_text(tmp_path, "text")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_text(tmp_path / "nowhere" / "a", "text")
    assert names(tmp_path) == ["pipe"]


NO_PROC = pytest.mark.skipif(not Path("/proc").is_dir(), reason="only Linux has it")


@pytest.mark.parametrize("path", ["m" * 240, pytest.param("/proc/model.nx", marks=NO_PROC)])
def test_whether_a_file_can_be_written_is_tried(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=rf"'{path}' cannot be written: \w+"):
        check_output(path)
    assert check_output("new") == Path("new")
    assert names(tmp_path) == []


def test_the_next_writer_clears_up_after_a_killed_one(tmp_path: Path) -> None:
    killed, other = start_writer(tmp_path / "a"), start_writer(tmp_path / "ab")
    for writer in (killed, other):
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert len(names(tmp_path)) == 2
    write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
    left = [name for name in names(tmp_path) if name != "a"]
    assert [name.startswith(".ab.") for name in left] == [True]  # that of another target is for its next writer


def test_what_may_still_be_in_use_is_left_alone(tmp_path: Path) -> None:
    running = start_writer(tmp_path / "a")
    strangers = [".a.12345", ".a.01234567-999999999-0123456789abcdef0123456789abcdef", ".a.swp"]
    for name in strangers:
        (tmp_path / name).write_text("not ours to remove")
    before = names(tmp_path)
    write_text(tmp_path / "a", "new")
    assert names(tmp_path) == sorted([*before, "a"])
    running.kill()
    running.wait()
    write_text(tmp_path / "a", "newer")
    assert names(tmp_path) == sorted([*strangers, "a"])
