# MuJoCo's compiled bindings ship no stubs (as of 4.0): all that they hold is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
