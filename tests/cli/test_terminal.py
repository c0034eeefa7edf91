"""Completion and manual pages, tried in the shells and by `man` themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fededge.cli import main
from fededge.cli.parser import COMMANDS

BASH = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$(($# - 2))
complete -p fededge | grep -q -- '-F' || exit 1
function=$(complete -p fededge | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function fededge "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program} (Debian: apt install {program})")


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def script_of(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    path = folder / f"fededge.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def test_each_shell_reads_its_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(shell)
    script = script_of(shell, tmp_path, capsys)
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("simul",), ["simulate"]),
        (("status", "--conf"), ["--config"]),
        (("completion", "b"), ["bash"]),
        (("demo", "--roun"), ["--rounds"]),
    ],
)
def test_bash_completes_commands_flags_and_choices(
    words: tuple[str, ...],
    expected: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs("bash")
    script = script_of("bash", tmp_path, capsys)
    command = ["bash", "-c", BASH, "bash", str(script), "fededge", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def test_bash_completes_files_for_flags_that_take_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("bash")
    script = script_of("bash", tmp_path, capsys)
    (tmp_path / "agent.toml").touch()
    words = ("fededge", "agent", "--config", "agen")
    command = ["bash", "-c", BASH, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["agent.toml"]


def test_fish_completes_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("fish")
    script = script_of("fish", tmp_path, capsys)
    line = f"source {script}; complete -C 'fededge simul'"
    done = subprocess.run(["fish", "-N", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "simulate"


def test_every_command_has_a_manual_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["man", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{len(COMMANDS) + 1} pages in {tmp_path}\n"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"fededge.1", *(f"fededge-{command}.1" for command in COMMANDS)}


def test_man_shows_a_page_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    needs("man")
    assert main(["man", "agent"]) == 0
    page = capsys.readouterr().out
    command = ["man", "--warnings", "--local-file", "-"]
    done = subprocess.run(command, input=page, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "fededge-agent - run the agent of a device" in done.stdout
    assert "--config FILE" in done.stdout


def test_a_page_of_no_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man", "simulat"]) == 2
    assert "no command 'simulat'; did you mean 'simulate'?" in capsys.readouterr().err


def test_a_typo_in_a_command_names_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statsu", "--config", "agent"]) == 2
    assert capsys.readouterr().err.startswith(
        "fededge: no command 'statsu'; did you mean 'status'?"
    )
