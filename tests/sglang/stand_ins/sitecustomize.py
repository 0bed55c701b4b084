"""Lets torchvision be imported beside a torch for the CPU.

Python runs this by itself, because its directory is on `PYTHONPATH`. torchvision's compiled
operators do not load there, and this one module of it insists on them; nothing we do uses any.
"""

import sys
from types import ModuleType

sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
