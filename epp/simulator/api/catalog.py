"""
The catalog: the base model and the adapters of one server, and their coming and going.

There are no files here. At run time a path is taken to hold an adapter unless it begins with
`/nonexistent`, which stands for all the paths where a real server would find none; adapters given
at the start are not looked for at all.
"""

import itertools
import time
import uuid
from collections.abc import Iterable

import msgspec

from epp.simulator.api.bodies import LoadAdapterBody, UnloadAdapterBody
from epp.simulator.api.decoding import decode, decoder_of
from epp.simulator.api.errors import APIError, unknown_model
from epp.simulator.engine import Adapter

MISSING_PATHS = "/nonexistent"

_LOAD = decoder_of(LoadAdapterBody)
_UNLOAD = decoder_of(UnloadAdapterBody)


class Catalog:
    """The models of one server by name."""

    def __init__(self, model: str, modules: Iterable[str], max_model_len: int) -> None:
        """Take modules as NAME or NAME=PATH; the path of one that has none is its name."""
        self.model = model
        self.max_model_len = max_model_len
        self._numbers = itertools.count(1)
        self._adapters: dict[str, Adapter] = {}
        for module in modules:
            name, _, path = module.partition("=")
            self._adapters[name] = Adapter(name, path or name, next(self._numbers))

    def adapter(self, model: str | None) -> Adapter | None:
        """Return the adapter that a request names; None for the base, APIError if unknown."""
        if model is None or model == self.model:
            return None
        try:
            return self._adapters[model]
        except KeyError:
            raise unknown_model(model, self.model) from None

    def load(self, body: bytes) -> tuple[str, str | None]:
        """
        Load the adapter that a body describes.

        Return what to answer, and its name where it took the place of one of the same name, whose
        weights are of no use any more.
        """
        asked = decode(_LOAD, body)
        name, path = asked.lora_name, asked.lora_path
        if not name or not path:
            raise _invalid("Both 'lora_name' and 'lora_path' must be provided.")
        if name == self.model:
            raise _invalid(f"The lora adapter '{name}' conflicts with a served base model.")
        old = self._adapters.get(name)
        if old is not None and not asked.load_inplace:
            raise _invalid(
                f"The lora adapter '{name}' has already been loaded. If you want to load the"
                " adapter in place, set 'load_inplace' to True."
            )
        if path.startswith(MISSING_PATHS):
            # The real server, too, writes `<path>` instead of the path.
            raise _not_found(f"Loading lora {name} failed: No adapter found for <path>")
        number = next(self._numbers) if old is None else old.number
        self._adapters[name] = Adapter(name, path, number)
        return f"Success: LoRA adapter '{name}' added successfully.", old and old.name

    def unload(self, body: bytes) -> tuple[str, str]:
        """Unload the adapter that a body names; return what to answer, and the adapter's name."""
        name = decode(_UNLOAD, body).lora_name
        if not name:
            raise _invalid("'lora_name' needs to be provided to unload a LoRA adapter.")
        if self._adapters.pop(name, None) is None:
            raise _not_found(f"The lora adapter '{name}' cannot be found.")
        return f"Success: LoRA adapter '{name}' removed successfully.", name

    def models(self) -> bytes:
        """Return the list of models, the base first."""
        cards = [self._card(self.model, self.model, None)]
        cards += [self._card(one.name, one.path, self.model) for one in self._adapters.values()]
        return msgspec.json.encode({"object": "list", "data": cards})

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, object]:
        now = int(time.time())
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}",
            "object": "model_permission",
            "created": now,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": now,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": None if parent else self.max_model_len,
            "permission": [permission],
        }


def _invalid(message: str) -> APIError:
    return APIError(message, kind="InvalidUserInput")


def _not_found(message: str) -> APIError:
    return APIError(message, status=404, kind="NotFoundError")
