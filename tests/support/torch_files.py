# SPDX-License-Identifier: Apache-2.0
"""Files as `torch.save` writes them, without torch: the outline alone, with no bytes of tensors."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

_STORAGES = {"fp32": "FloatStorage", "bf16": "BFloat16Storage"}


class FakeTensor(NamedTuple):
    """A tensor to be written."""

    format: str
    shape: tuple[int, ...]


class Global(NamedTuple):
    """A class or function of the file, called without arguments."""

    module: str
    name: str


class _Pickler(pickle._Pickler):
    def save(self, obj: Any, save_persistent_id: bool = True) -> Any:
        if isinstance(obj, FakeTensor):
            self.write(b"ctorch._utils\n_rebuild_tensor_v2\n(")
            self.write(b"(")
            super().save("storage")
            self.write(f"ctorch\n{_STORAGES[obj.format]}\n".encode())
            for each in ("0", "cpu", 1):
                super().save(each)
            self.write(pickle.TUPLE + pickle.BINPERSID)
            for each in (0, tuple(obj.shape), (), False):
                super().save(each)
            self.write(pickle.TUPLE + pickle.REDUCE)
            return None
        if isinstance(obj, Global):
            self.write(f"c{obj.module}\n{obj.name}\n".encode() + pickle.EMPTY_TUPLE + pickle.REDUCE)
            return None
        return super().save(obj, save_persistent_id)


def write_torch_file(file: Path, content: Any, padding: int = 0) -> Path:
    """Write a file of this outline; `padding` bytes stand for its tensors."""
    outline = io.BytesIO()
    _Pickler(outline, 2).dump(content)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", outline.getvalue())
        archive.writestr("archive/data/0", bytes(padding))
    return file
