"""Extra states of a sharded state dict that a checkpoint does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject

from accel_bridge.patches.dist_checkpointing import EXTRA_STATE


def forget_missing_extra_states(
    sharded_state_dict: dict[str, Any], stored: Mapping[str, Any]
) -> None:
    """Replace each extra state that is not stored with a local None, in place.

    :param stored: what the checkpoint holds, by unique key.
    """

    def forget(value: Any) -> Any:
        missing = (
            isinstance(value, ShardedObject)
            and value.key.endswith(EXTRA_STATE)
            and value.unique_key not in stored
        )
        return LocalNonpersistentObject(None) if missing else value

    dict_list_map_inplace(forget, sharded_state_dict)
