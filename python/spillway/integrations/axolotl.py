# SPDX-License-Identifier: MIT
# spillway/integrations/axolotl.py - the plugin for axolotl
"""In the configuration:

  plugins:
    - spillway.integrations.axolotl.SpillwayPlugin
  spillway:
    devices: [/dev/nvme1n1, /dev/nvme2n1]

``python3 -m spillway.integrations.axolotl train.yaml`` says whether axolotl will train with it:
axolotl before 0.21 trains without a plugin that it cannot import.
"""
from __future__ import annotations

import importlib.metadata
import sys
from typing import Any, Dict, List, Optional

import yaml
from axolotl.integrations.base import BasePlugin, PluginManager
from pydantic import BaseModel, model_validator

# axolotl before 0.21 logs an ImportError of a plugin and skips it; anything else ends it, as it
# must: what may fail is imported where axolotl calls.

__all__ = ["SpillwayArgs", "SpillwayPlugin"]

NAME = "spillway.integrations.axolotl.SpillwayPlugin"
CALLED = ("register", "get_input_args", "add_callbacks_pre_trainer", "post_train")


def _callback_of(block: Any) -> Any:
    try:
        from ._block import callback_of
    except ImportError as error:
        raise RuntimeError(f"spillway: the plugin cannot be loaded: {error}") from error
    return callback_of(block)


def _check(config: Dict[str, Any]) -> None:
    """The block, and what axolotl does itself with what spillway moves."""
    if config.get("spillway") is None:
        raise ValueError(f"spillway: {NAME} is among the plugins, but there is no block "
                         "`spillway:` with devices: [...]")
    _callback_of(config["spillway"])
    offloads = config.get("activation_offloading")
    if config.get("gradient_checkpointing") in ("offload", "offload_disk"):
        offloads = config["gradient_checkpointing"]
    if offloads:
        raise ValueError(f"spillway: activation_offloading ({offloads}) would take every "
                         "activation first, and spillway get none: remove one of the two")
    if config.get("layer_offloading"):
        raise ValueError("spillway: layer_offloading moves weights while they may be among what is "
                         "written: remove one of the two")


class SpillwayArgs(BaseModel):
    """The block, as part of axolotl's configuration."""

    spillway: Optional[Dict[str, Any]] = None

    @model_validator(mode="before")
    @classmethod
    def check_spillway(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("spillway") is not None:
            _check(data)
        return data


class SpillwayPlugin(BasePlugin):
    """Gives axolotl's trainer the callback of spillway.integrations.transformers."""

    def __init__(self) -> None:
        super().__init__()
        missing = [name for name in CALLED if not hasattr(BasePlugin, name)]
        if missing:
            raise RuntimeError(
                f"spillway: axolotl {importlib.metadata.version('axolotl')} has plugins without "
                f"{' and '.join(missing)}, by which spillway would be called")
        self.callback: Optional[Any] = None  # of the training that began last

    def register(self, cfg: Any) -> None:
        _check(cfg)

    def get_input_args(self) -> str:
        return f"{SpillwayArgs.__module__}.{SpillwayArgs.__name__}"

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> List[Any]:
        """axolotl calls it for plugins of earlier configurations of this process, too."""
        self.callback = None
        if not cfg.get("spillway"):
            return []
        block = cfg["spillway"]
        self.callback = _callback_of(block.to_dict() if hasattr(block, "to_dict") else block)
        return [self.callback]

    def post_train(self, cfg: Any, model: Any) -> None:
        if self.callback is not None:
            from ._block import trained

            trained(self.callback, "axolotl")


def _registered(config: Dict[str, Any]) -> None:
    """By axolotl's own means, and the drives are those of a store that is free."""
    manager = PluginManager.get_instance()
    manager.register(NAME)
    if NAME not in manager.plugins:
        raise RuntimeError("spillway: axolotl could not load the plugin and would train without")
    manager.plugins[NAME].register(config)
    from .._offload.arguments import opened_store
    from ._block import devices_of

    store, _ = opened_store(devices_of(config["spillway"]), config["spillway"].get("rank"))
    if store is not None:
        store.close()


def main(arguments: List[str]) -> int:
    """Whether axolotl will train with spillway by a configuration: 0, or 1 and why not."""
    if len(arguments) != 1:
        print("usage: python3 -m spillway.integrations.axolotl CONFIG.yaml", file=sys.stderr)
        return 2
    try:
        with open(arguments[0], encoding="utf-8") as file:
            config = yaml.safe_load(file)
        plugins = config.get("plugins") if isinstance(config, dict) else None
        if NAME not in (str(plugin).replace(":", ".") for plugin in plugins or ()):
            raise ValueError(f"spillway: {arguments[0]} does not have {NAME} among its plugins")
        _registered(config)
    except (OSError, RuntimeError, ValueError, yaml.YAMLError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{arguments[0]}: axolotl {importlib.metadata.version('axolotl')} trains with spillway")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
