from __future__ import annotations

import sys
from pathlib import Path

from harness.gates import registry


def test_every_module_of_a_family_is_imported_once():
    folder = Path(registry.__file__).parent
    files = {p.relative_to(folder).with_suffix("").as_posix().replace("/", ".") for p in folder.glob("*/[!_]*.py")}
    modules = {gate.check.__module__.removeprefix("harness.gates.") for gate in registry.all_gates()}
    assert modules <= files
    assert files <= {name.removeprefix("harness.gates.") for name in sys.modules}
    assert not any(name.endswith(".__init__") for name in sys.modules if name.startswith("harness.gates."))
