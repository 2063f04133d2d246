"""A GPU without one: fake tensors of torch, which know their device, and beside each its values on the CPU.

`FakeTensorMode` alone refuses what depends on values. Here they are known, so that all code runs to its end, mixes of
devices are errors as on a GPU, and each time that the host would wait for the device is written down.
"""

import sys
from collections import Counter
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

SOURCE = str(Path(__file__).parents[2] / "src" / "thinkalike")
UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
READS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}


def fakes(*trees):
    return [each for each in tree_leaves(trees) if isinstance(each, FakeTensor)]


def caller():
    """Return the innermost function of the package that runs, as module.function."""
    frame = sys._getframe(2)
    while frame and not frame.f_code.co_filename.startswith(SOURCE):
        frame = frame.f_back
    if not frame:
        return "test"
    names = [name for name in frame.f_code.co_qualname.split(".") if not name.startswith("<")]
    return f"{Path(frame.f_code.co_filename).stem}.{names[-1]}"


class FakeDevice(FakeTensorMode):
    """Runs all operations on the CPU and on fake tensors, which have any number of GPUs.

    Attributes:
        waits: How often the host would wait for a device, by the function of the package that lets it: to read a value
            or a shape that depends on values, or to copy between the host and a device.
    """

    def __init__(self):
        super().__init__(allow_non_fake_inputs=True)
        self.waits, self.is_inside, self.asked = Counter(), False, torch.device("cpu")

    def __enter__(self):
        own = {"tolist": _list, "numpy": _array, "to": _to, "__deepcopy__": _copied}
        own |= {"__getitem__": _item, "__setitem__": _set_item}
        own["is_cuda"] = property(lambda each: each.device.type == "cuda")
        self.before = {name: getattr(FakeTensor, name) for name in own}
        for name, method in own.items():
            setattr(FakeTensor, name, method)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        for name, own in self.before.items():
            setattr(FakeTensor, name, own)

    def dispatch(self, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:  # it is C++ that asks, which knows of no GPU here
            self.asked = args[0].fake_device
            return torch.device("meta")
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")) in ("meta", "cuda"):
            kwargs["device"] = self.asked
        if self.is_inside:
            return super().dispatch(func, types, args, kwargs)
        args, kwargs = tree_map_only(torch.Tensor, self.faked, (args, kwargs))
        if self.lets_wait(func.overloadpacket.__name__, args, kwargs):
            self.waits[caller()] += 1
        real_args, real_kwargs = tree_map_only(FakeTensor, lambda each: each.actual, (args, kwargs))
        real_kwargs |= {"device": torch.device("cpu")} if "device" in kwargs else {}
        self.is_inside = True
        try:
            found = func(*real_args, **real_kwargs)
            fake = self.like(found, func, types, args, kwargs)
        finally:
            self.is_inside = False
        for one, actual in zip(tree_leaves(fake), tree_leaves(found), strict=True):
            if isinstance(one, FakeTensor):
                one.actual = actual
        return fake

    def like(self, found, func, types, args, kwargs):
        try:
            return super().dispatch(func, types, args, kwargs)
        except UNKNOWN:
            looked = args[:1] if func.overloadpacket.__name__ in INDEXED else (args, kwargs)
            device, _ = FakeTensor._find_common_device(func, tree_leaves(looked))
            return tree_map_only(torch.Tensor, lambda each: self.faked(each, device), found)

    def faked(self, tensor, device=None):
        if isinstance(tensor, FakeTensor):
            return tensor
        assert tensor.device.type != "meta", "its values are lost"
        meta = tensor.detach().to("meta")
        found = self.fake_tensor_converter.from_meta_and_device(self, meta, device or tensor.device)
        found.actual = tensor
        return found

    def lets_wait(self, name, args, kwargs):
        devices, target = {each.fake_device for each in fakes(args, kwargs)}, kwargs.get("device")
        there = devices | ({torch.device(target)} if target else set())
        if not any(device.type == "cuda" for device in there):
            return False
        if name in INDEXED:
            return any(each.dtype == torch.bool or each.fake_device.type == "cpu" for each in fakes(args[1]))
        is_copied = name in ("_to_copy", "copy_") and any(device.type == "cpu" for device in there)
        return name in READS or is_copied or (name == "repeat_interleave" and kwargs.get("output_size") is None)


def _to(tensor, *args, copy=False, **kwargs):
    """C++ would compare devices, all of which look the same to it."""
    if args and isinstance(args[0], torch.Tensor):
        args, kwargs = (), {"device": args[0].device, "dtype": args[0].dtype}
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    device, dtype = torch.device(device or tensor.device), dtype or tensor.dtype
    if (device, dtype) == (tensor.device, tensor.dtype) and not copy:
        return tensor
    return torch.ops.aten._to_copy(tensor, dtype=dtype, device=device)


def _places(key):
    """C++ would bring a list to what it takes for the device."""
    parts = key if isinstance(key, tuple) else (key,)
    return tuple(torch.tensor(part or (), dtype=_dtype(part)) if isinstance(part, list) else part for part in parts)


def _dtype(part):
    return torch.bool if part and isinstance(part[0], bool) else torch.long


def _item(tensor, key):
    return torch.Tensor.__getitem__(tensor, _places(key))


def _set_item(tensor, key, value):
    torch.Tensor.__setitem__(tensor, _places(key), value)


def _copied(tensor, _):
    made = tensor.detach().clone()
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def _list(tensor):
    there = tensor.to("cpu")
    with _disable_current_modes():
        return there.actual.tolist()


def _array(tensor, *_, **__):
    if tensor.device.type != "cpu":
        raise TypeError(f"can't convert a tensor on {tensor.device} to numpy")
    with _disable_current_modes():
        return tensor.actual.detach().numpy()


def move(module, device):
    """Move a module to a device in place."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                part._parameters[name] = torch.nn.Parameter(weight.detach().to(device), weight.requires_grad)
        for name, buffer in part._buffers.items():
            part._buffers[name] = buffer if buffer is None else buffer.to(device)
    return module
