# Ray, an extra that need not be installed. Without this, pyright would take
# distmnist/launching/ray for it.
from typing import Any

def __getattr__(name: str) -> Any: ...
