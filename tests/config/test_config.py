"""Configuration files: their values, and one clear error for every mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fededge.config import AgentConfig, CoordinatorConfig, Side, load, template
from fededge.errors import ConfigError

COORDINATOR = 'federation = "lab"\nstate = "state"\n'
AGENT = COORDINATOR + 'device = "box-1"\n'


def coordinator(folder: Path, text: str) -> CoordinatorConfig:
    path = folder / "coordinator.toml"
    path.write_text(text)
    return load(path, CoordinatorConfig, {})


def agent(folder: Path, text: str, environment: dict[str, str] | None = None) -> AgentConfig:
    path = folder / "agent.toml"
    path.write_text(text)
    path.chmod(0o600)
    return load(path, AgentConfig, environment or {})


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    config = agent(tmp_path, AGENT + '[data]\nsource = "folder"\nroot = "pictures"\n')
    assert config.state == str(tmp_path / "state")
    assert config.data.root == str(tmp_path / "pictures")


OWN = """
from dataclasses import dataclass
from typing import ClassVar
from fededge.methods import Method

@dataclass(frozen=True)
class Mine(Method):
    name: ClassVar[str] = "mine"
"""


def test_files_of_methods_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    text = 'method = "fedprox(mu=1e+1)+own.py:Mine"\n'
    assert coordinator(tmp_path, COORDINATOR + text).method == (
        f"fedprox(mu=1e+1)+{tmp_path / 'own.py'}:Mine"
    )
    text = 'methods = ["own.py:Mine"]\n'
    assert agent(tmp_path, AGENT + text).methods == (f"{tmp_path / 'own.py'}:Mine",)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("own.py:Yours", "own.py has no method 'Yours'; it has Mine"),
        ("gone.py:Mine", "gone.py: there is no such file"),
        ("fedprox", "'fedprox' is not of the form path/to/file.py:Name"),
    ],
)
def test_a_method_that_cannot_be_allowed_is_named(
    tmp_path: Path, entry: str, sentence: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(ConfigError, match=r"agent\.toml") as error:
        agent(tmp_path, AGENT + f'methods = ["{entry}"]\n')
    assert sentence in str(error.value)


def test_the_password_comes_from_the_environment(tmp_path: Path) -> None:
    text = AGENT + '[broker]\nusername = "box"\npassword = "in the file"\n'
    assert agent(tmp_path, text).broker.password == "in the file"
    assert agent(tmp_path, text, {"FEDEDGE_PASSWORD": "s3cret"}).broker.password == "s3cret"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "box.password"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    return path


FROM_FILE = AGENT + '[broker]\nusername = "box"\npassword_file = "box.password"\n'


def test_the_password_comes_from_a_file(tmp_path: Path, secret: Path) -> None:
    assert agent(tmp_path, FROM_FILE).broker.password == "s3cret"
    secret.chmod(0o640)  # a service's group may share it
    assert agent(tmp_path, FROM_FILE).broker.password == "s3cret"
    environment = {"FEDEDGE_PASSWORD": "stronger"}
    assert agent(tmp_path, FROM_FILE, environment).broker.password == "stronger"


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"s3cret", 0o604, r"every user can read '.*box.password'; fix: chmod 600 /"),
        (b"", 0o600, "must hold one line, the password"),
        (b"one\ntwo\nthree\n", 0o600, "must hold one line, the password; during a rotation two"),
        (b"one\n\n", 0o600, "must hold one line, the password"),
        (b"\xff\xfe", 0o600, "must hold one line, the password"),
    ],
)
def test_a_password_file_that_will_not_do(
    tmp_path: Path, secret: Path, content: bytes, mode: int, said: str
) -> None:
    secret.write_bytes(content)
    secret.chmod(mode)
    with pytest.raises(ConfigError, match=said) as error:
        agent(tmp_path, FROM_FILE)
    assert "s3cret" not in str(error.value)


def test_a_password_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"broker.password_file: there is no file '.*password'"):
        agent(tmp_path, FROM_FILE)


def test_two_passwords_are_one_too_many(tmp_path: Path, secret: Path) -> None:
    with pytest.raises(ConfigError, match="both set; leave one out"):
        agent(tmp_path, FROM_FILE + 'password = "x"\n')


def test_a_file_with_a_password_in_it_is_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text(COORDINATOR + '[broker]\npassword = "s3cret"\n')
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"broker.password is in it.*chmod 600"):
        load(path, CoordinatorConfig, {})


def test_a_configuration_that_is_printed_keeps_the_password_to_itself(
    tmp_path: Path, secret: Path
) -> None:
    config = agent(tmp_path, FROM_FILE)
    assert "s3cret" not in f"{config} {config!r} {config.broker} {[config.broker]}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[brokr]\n", "unknown key 'brokr'; did you mean 'broker'?"),
        ("[broker]\nprt = 1\n", "unknown key 'prt' in [broker]; did you mean 'port'?"),
        ('[broker]\nport = "x"\n', "broker.port: expected int, got str"),
        ("[broker]\nport = 70000\n", "broker.port: expected int <= 65535"),
        ("broker = 3\n", "broker: expected a table, got int"),
        (
            '[broker]\nprotocol = "4"\n',
            "broker.protocol: invalid enum value '4'; allowed: '5', '3.1.1'",
        ),
        ('method = "fedavgg"\n', "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        ('method = "fedprox(m=1)"\n', "method 'fedprox' has no option 'm'"),
        ('method = "own.py:Mine"\n', "own.py: there is no such file"),
        ('method = "lfd"\n', "lfd needs a network with a cosine head"),
        (
            'method = "mixup+fedrod"\n[model]\nhead = "cosine:0.05"\n',
            "fedrod needs a linear head: set head to linear or bias-free",
        ),
        ('method = "mixup"\n[model]\nname = "fasttext"\n', "mixup can mix pixels, but not texts"),
        ('method = "fedbalance"\n[model]\nname = "fasttext"\n', "weak learners for images only"),
        ('[model]\nhead = "cosin"\n', "no head 'cosin'; did you mean 'cosine'?"),
        ("[training]\nclip_norm = -1.0\n", "training.clip_norm: expected float >= 0"),
        ('[model]\nname = "lenett"\n', "no network 'lenett'; did you mean 'lenet'?"),
        ('[data]\nsource = "folder"\nroot = "nowhere"\n', "data.root: there is no"),
        ("[rounds]\nquorum = 3\n", "rounds.quorum is 3, but a round may begin with 2 devices"),
        ("[rounds]\nparticipants = 3\n", "rounds.participants is 3, but a round may begin with"),
        (
            '[robust]\ncombine = "krum"\n',
            "robust.combine = 'krum' needs robust.byzantine + 3 = 4 updates; raise rounds.quorum",
        ),
        (
            'method = "fedprox+scaffold"\n[robust]\ncombine = "median"\n',
            "robust.combine is 'median', but method 'scaffold' steps by a sum over all updates",
        ),
        ("[training]\nlr = -1.0\n", "training.lr: expected float"),
        ('[hardware]\ndevice = "gpu"\n', "hardware.device is 'gpu', it must be like 'auto', 'cpu'"),
        ("[hardware]\nthreads = -1\n", "hardware.threads: expected int >= 0"),
        (
            '[hardware]\nprecision = "fp16"\n',
            "hardware.precision: invalid enum value 'fp16'; allowed: 'float32', 'bfloat16', ",
        ),
        (
            '[hardware]\nmemory_format = "nhwc"\n',
            "hardware.memory_format: invalid enum value 'nhwc'; allowed: 'auto', 'contiguous'",
        ),
        ("[hardware]\nidle = 3\n", "unknown key 'idle' in [hardware]"),
        ("x = [\n", "not a TOML file"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_key(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        coordinator(tmp_path, COORDINATOR + text)
    assert str(error.value).startswith(f"{tmp_path / 'coordinator.toml'}: ")
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('device = "box-1"\n', "missing required field federation"),
        (COORDINATOR + 'device = "a/b"\n', "device 'a/b' must be 1 to 64 letters"),
        (COORDINATOR + 'device = "+"\n', "device '+' must be 1 to 64 letters"),
        ('federation = "x y"\nstate = "s"\ndevice = "d"\n', "federation 'x y' must be"),
    ],
)
def test_names_that_cannot_be_topics_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.toml") as error:
        agent(tmp_path, text)
    assert sentence in str(error.value)


def test_the_hardware_is_automatic_on_a_device_and_the_cpu_at_the_coordinator(
    tmp_path: Path,
) -> None:
    box = agent(tmp_path, AGENT).hardware
    assert (box.device, box.threads, box.precision, box.idle) == ("auto", 0, "float32", 300.0)
    assert coordinator(tmp_path, COORDINATOR).hardware.device == "cpu"
    with pytest.raises(ConfigError, match=r"hardware\.device is 'cuda:x'"):
        agent(tmp_path, AGENT + '[hardware]\ndevice = "cuda:x"\n')


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "nothing.toml", AgentConfig, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, AgentConfig, {})


@pytest.mark.parametrize("kind", [CoordinatorConfig, AgentConfig])
def test_a_template_reads_back_as_what_it_was_made_of(tmp_path: Path, kind: type[Side]) -> None:
    values: dict[str, Any] = {
        "federation": "lab",
        "state": "here",
        "broker": {"port": 1884, "protocol": "3.1.1"},
    }
    if kind is AgentConfig:
        values["device"] = "box-1"
    path = tmp_path / "made.toml"
    path.write_text(template(kind, values))
    config = load(path, kind, {})
    assert (config.federation, config.broker.port, config.broker.protocol) == ("lab", 1884, "3.1.1")
    assert config.broker.keepalive == 30


@pytest.mark.parametrize("kind", [CoordinatorConfig, AgentConfig])
def test_every_key_of_a_template_is_true_when_its_comment_mark_is_removed(
    tmp_path: Path, kind: type[Side]
) -> None:
    """The defaults that a template shows in comments are values that the reader accepts."""
    text = template(kind, {"federation": "lab", "state": "here", "device": "box"})
    head, *rest = text.splitlines()
    keys = [
        line[2:] if line.startswith("# ") and ("= " in line or "[" in line) else line
        for line in rest
    ]
    path = tmp_path / "all.toml"
    path.write_text("\n".join([head, *keys]))
    config = load(path, kind, {})
    assert config.broker.host == "localhost"


def test_weights_are_a_path_beside_the_coordinators_file_and_nothing_for_an_agent(
    tmp_path: Path,
) -> None:
    path = tmp_path / "side.toml"
    path.write_text('federation = "f"\nstate = "s"\n[model]\nweights = "start.safetensors"\n')
    found = load(path, CoordinatorConfig).model.weights
    assert found == str(tmp_path / "start.safetensors")
    path.write_text(
        'federation = "f"\nstate = "s"\ndevice = "box"\n[model]\nweights = "start.safetensors"\n'
    )
    with pytest.raises(ConfigError, match="an agent reads no weights, its coordinator does"):
        load(path, AgentConfig)
