"""Write docs/coverage.md: which of MegEngine's names exist here, and what each op record holds.

In: the names below, the modules of mge, the op records. Out: the page. A test compares the two.
"""

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coverage.md"

# The names that MegEngine's users expect, by our module. A line is "group: names"; names are read below the module.
EXPECTED: dict[str, str] = {
    "mge": """
        tensors: Tensor tensor Parameter
        files: save load
        devices: get_device_count is_cuda_available set_default_device get_default_device get_allocated_memory
            get_reserved_memory get_max_allocated_memory get_max_reserved_memory reset_max_memory_stats
    """,
    "mge.Tensor": """
        what it is: shape dtype device ndim size grad name T
        reading: numpy item tolist detach to astype __bool__ __int__ __float__ __index__ __dlpack__ __reduce__
        methods: reshape transpose flatten sum prod mean min max
        indexing: __getitem__ __setitem__ __len__ __iter__
        arithmetic: __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__
            __truediv__ __rtruediv__ __itruediv__ __floordiv__ __rfloordiv__ __ifloordiv__ __mod__ __rmod__ __imod__
            __pow__ __rpow__ __ipow__ __matmul__ __rmatmul__ __imatmul__ __neg__ __pos__ __abs__
        bits: __and__ __rand__ __iand__ __or__ __ror__ __ior__ __xor__ __rxor__ __ixor__ __invert__
            __lshift__ __rlshift__ __ilshift__ __rshift__ __rrshift__ __irshift__
        comparison: __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__
    """,
    "mge.functional": """
        elementwise: add sub mul div floor_div mod pow neg abs exp expm1 erf log log1p sqrt square logaddexp round
            ceil floor maximum minimum clip sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
            logical_and logical_or logical_xor logical_not equal not_equal less less_equal greater greater_equal
        math: sum prod mean var std min max argmin argmax argsort sort topk matmul dot norm normalize isnan isinf
            sign einsum
        tensor: arange linspace eye diag full ones zeros ones_like zeros_like full_like broadcast_to concat stack
            split gather scatter where cond_take non_zero transpose swapaxes reshape flatten expand_dims squeeze
            repeat tile copy roll cumsum meshgrid
        nn: linear conv1d conv2d conv3d conv_transpose2d conv_transpose3d max_pool2d avg_pool2d adaptive_max_pool2d
            adaptive_avg_pool2d relu relu6 leaky_relu prelu sigmoid hsigmoid hswish silu gelu softplus softmax
            logsoftmax logsigmoid logsumexp layer_norm group_norm instance_norm general_norm batch_norm
            sync_batch_norm dropout one_hot embedding indexing_one_hot pad pixel_shuffle multi_head_attention
        loss: l1_loss square_loss cross_entropy binary_cross_entropy ctc_loss
        metric: topk_accuracy
    """,
    "mge.module": """
        base: Module Sequential Identity
        members of Module: Module.forward Module.register_forward_pre_hook Module.register_forward_hook
            Module.parameters Module.named_parameters Module.buffers Module.named_buffers Module.children
            Module.named_children Module.modules Module.named_modules Module.tensors Module.named_tensors
            Module.apply Module.zero_grad Module.train Module.eval Module.disable_quantize Module.replace_param
            Module.state_dict Module.load_state_dict
        layers: Linear Conv1d Conv2d Conv3d ConvTranspose2d ConvTranspose3d BatchNorm1d BatchNorm2d SyncBatchNorm
            LayerNorm GroupNorm InstanceNorm Embedding Dropout MaxPool2d AvgPool2d AdaptiveAvgPool2d
            AdaptiveMaxPool2d ReLU LeakyReLU PReLU Sigmoid SiLU GELU Softmax RNN LSTM RNNCell LSTMCell
            MultiHeadAttention Pad PixelShuffle
        initial values: init.fill_ init.zeros_ init.ones_ init.uniform_ init.normal_ init.xavier_uniform_
            init.xavier_normal_ init.msra_uniform_ init.msra_normal_ init.calculate_gain
            init.calculate_fan_in_and_fan_out
    """,
    "mge.optimizer": """
        base: Optimizer Optimizer.step Optimizer.clear_grad Optimizer.add_param_group Optimizer.state_dict
            Optimizer.load_state_dict
        rules: SGD Adam AdamW
        schedules: LRScheduler MultiStepLR
        clipping: clip_grad_norm clip_grad_value
    """,
    "mge.autodiff": """
        gradients: GradManager GradManager.attach GradManager.record GradManager.release GradManager.backward
            GradManager.attached_tensors GradManager.__or__ GradManager.__enter__
        own rules: Function Function.forward Function.backward
    """,
    "mge.jit": """
        tracing: trace trace.dump exclude_from_trace TraceError
        settings: SublinearMemoryConfig DTRConfig GraphOptimizationConfig
    """,
    "mge.data": """
        data sets: Dataset StreamDataset ArrayDataset ConcatDataset
        samplers: Sampler MapSampler SequentialSampler RandomSampler ReplacementSampler Infinite StreamSampler
        loading: DataLoader Collator
        transforms: transform.Transform transform.PseudoTransform transform.Compose transform.ToMode
            transform.Normalize transform.Resize transform.ShortestEdgeResize transform.RandomResize
            transform.CenterCrop transform.RandomCrop transform.RandomResizedCrop transform.RandomHorizontalFlip
            transform.RandomVerticalFlip transform.Pad transform.ColorJitter transform.BrightnessTransform
            transform.ContrastTransform transform.SaturationTransform transform.HueTransform transform.Lighting
            transform.GaussianNoise transform.TorchTransformCompose
    """,
    "mge.random": """
        draws: seed RNG uniform normal permutation shuffle
    """,
    "mge.amp": """
        casting: autocast enabled
        scaling: GradScaler GradScaler.backward GradScaler.unscale GradScaler.update
    """,
    "mge.config": """
        switches: benchmark_kernel deterministic_kernel async_level
    """,
    "mge.dtr": """
        strategy: enable disable eviction_threshold evictee_minimum_size enable_sqrt_sampling
    """,
    "mge.utils": """
        profiler: profiler.Profiler profiler.profile profiler.scope profiler.merge_trace_events
        statistics: module_stats.module_stats
    """,
}

# What MegEngine's users expect too, and which distribution or later change of the core brings it.
LATER: dict[str, str] = {
    "functional.vision": "mge-vision",
    "functional.quantized, quantization, module.qat, module.quantized": "mge-quant",
    "module: the fused modules for quantisation (ConvBn2d to DequantStub)": "mge-quant",
    "functional.distributed, distributed": "collective communication",
    "tools: network_visualize, profile_analyze": "commands",
}

HEAD = """# MegEngine's names in mge

Written by `python tools/coverage.py`; a test compares it with the code. First, for each name that MegEngine's users
expect, its signature here (an op's attributes may also be given by position, in this order). Then what each op
record holds.

"""


def entries(module: str) -> list[tuple[str, str]]:
    """Return (group, name) of each expected name of a module."""
    found, group = [], ""
    for line in EXPECTED[module].strip().splitlines():
        left, colon, right = line.strip().partition(": ")
        group, names = (left, right) if colon else (group, left)
        found += [(group, name) for name in names.split()]
    return found


def resolve(module: str, name: str) -> Any:
    """Return what a name stands for, or None where it is missing."""
    try:
        if module == "mge.Tensor":
            module, name = "mge", f"Tensor.{name}"
        thing = importlib.import_module(module)
        for part in name.split("."):
            if inspect.isclass(thing) and not any(part in vars(c) for c in thing.__mro__[:-1]):
                return None  # getattr would find what object and type have
            if inspect.ismodule(thing) and not hasattr(thing, part):
                thing = importlib.import_module(f"{thing.__name__}.{part}")
            else:
                thing = getattr(thing, part)
    except (AttributeError, ImportError):
        return None
    return thing


def signature(thing: Any) -> str:
    """Return parameter names and defaults of a callable, or what else a thing is."""
    if isinstance(thing, property) or inspect.isdatadescriptor(thing):
        return "property"
    if not callable(thing):
        return type(thing).__name__
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    for p in parameters:
        if hasattr(p.default, "input_names"):  # a method that is an op
            parameters = [
                q.replace(annotation=q.empty)
                for q in inspect.signature(p.default).parameters.values()
            ][1:]
    parameters = [p for p in parameters if p.name not in ("self", "cls")]
    text = str(found.replace(parameters=parameters, return_annotation=found.empty))
    text = re.sub(r"<(?:function|class|op|built-in function) '?([\w.]+)[^>]*>", r"\1", text)
    return re.sub(r"<[^>]* at 0x[^>]*>", "...", text)


def missing(modules: Iterable[str] = EXPECTED) -> list[str]:
    """Return the expected names that do not exist."""
    return [
        f"{module}.{name}"
        for module in modules
        for _, name in entries(module)
        if resolve(module, name) is None
    ]


def names_table(module: str) -> list[str]:
    """Return the lines of one module's table; operators that Python's syntax calls share a row."""
    lines = [f"## `{module}`", "", "| group | name | signature |", "| --- | --- | --- |"]
    rows: dict[tuple[str, str], list[str]] = {}
    for group, name in entries(module):
        thing = resolve(module, name)
        if thing is None:
            shown = "**missing**"
        elif re.fullmatch(r"(.*\.)?__\w+__", name):
            shown = "Python's"
        else:
            shown = f"`{signature(thing)}`".replace("|", "\\|")
        key = (group, shown if shown == "Python's" else name)
        rows.setdefault(key, [shown]).append(f"`{name}`")
    before = ""
    for (group, _), (shown, *names) in rows.items():
        lines.append(f"| {group if group != before else ''} | {' '.join(names)} | {shown} |")
        before = group
    return [*lines, ""]


def op_rows() -> list[str]:
    """Return one line for each op: its rules and samples."""
    import numpy as np

    import mge  # noqa: F401  (fills the registry)
    from mge.op import OPS

    rows = []
    for name, op in sorted((n, o) for n, o in OPS.items() if "::" not in n):  # the core's own
        samples = (
            0 if op._samples is None else sum(1 for _ in op._samples(np.random.default_rng(0)))
        )
        gradient = "rule" if op._gradient else "through lowering" if op._lowering else "**none**"
        lowering = "base op" if op.is_base else "yes" if op._lowering else "**none**"
        home = op.__module__.rpartition(".")[2]
        shown = signature(op).replace("|", "\\|")
        rows.append(f"| `{name}` | `{shown}` | {home} | {gradient} | {lowering} | {samples} |")
    return rows


def page() -> str:
    """Return the text of the page."""
    lines = []
    for module in EXPECTED:
        lines += names_table(module)
    lines += ["## Later", "", "| names | come with |", "| --- | --- |"]
    lines += [f"| `{names}` | {home} |" for names, home in LATER.items()]
    rows = op_rows()
    base = sum("| base op |" in row for row in rows)
    lines += [
        "",
        "## Ops",
        "",
        f"{len(rows)} ops, {base} of them base ops. Device `ref` runs all; so does a device with the base ops.",
        "",
        "| op | signature | file | gradient | lowering | samples |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
    ]
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or compare it; return 1 where it differs or an expected name is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    text = page()
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text() != text:
            print(f"{PAGE} is out of date; run python tools/coverage.py")
            return 1
    else:
        PAGE.write_text(text)
    gone = missing()
    for name in gone:
        print(f"missing: {name}")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
