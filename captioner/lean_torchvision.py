"""torchvision without torch's compiler, which takes a second to import and is never used.

torchvision imports all of torch._dynamo for one function that a detector's RoIAlign asks when it is
called. While torchvision is imported, a module that fetches that function later stands in for it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["torchvision"]

_NAME = "torch._dynamo.utils"


def _is_compile_supported(device_type: Any) -> Any:
    from torch._dynamo.utils import is_compile_supported

    return is_compile_supported(device_type)


if _NAME in sys.modules or "torchvision" in sys.modules:
    import torchvision
else:
    stand_in = ModuleType(_NAME)
    stand_in.is_compile_supported = _is_compile_supported  # type: ignore[attr-defined]
    sys.modules[_NAME] = stand_in
    try:
        import torchvision
    except ImportError:  # another torchvision, which wants more of it
        del sys.modules[_NAME]
        import torchvision
    finally:
        if sys.modules.get(_NAME) is stand_in:
            del sys.modules[_NAME]
