"""``mge.quantization`` and the like: modules of installed plugins under MegEngine's names."""

import pytest

NAMES = {
    "distributed": "mge-distributed",
    "hub": "mge-vision",
    "quantization": "mge-quant",
    "vision": "mge-vision",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["import mge.{0}", "import mge; mge.{0}", "from mge import {0}"])
def test_an_absent_package_is_an_import_error_that_says_what_to_install(site, name, way):
    code = f"try:\n    {way.format(name)}\nexcept ImportError as error:\n    print(error)"
    out, _ = site.python(code)
    assert f"mge.{name} was asked for" in out and f"pip install {NAMES[name]}" in out


def test_an_installed_package_stands_for_the_module(site):
    module = "LEVEL = 8\ndef backend(): raise RuntimeError('loaded')\n"
    site.add("mge-quant", {"mge.quantizers": {"int8": "mge_quant:backend"}}, {"mge_quant": module})
    out, _ = site.python("""
        import mge.quantization as Q
        from mge.quantization import LEVEL
        import mge, mge_quant
        print(LEVEL, Q is mge_quant, mge.quantization is mge_quant)
    """)
    assert out == "8 True True\n"


def test_a_broken_or_disabled_package_says_why(site):
    site.add("mge-quant", {"mge.quantizers": {"int8": "mge_quant:q"}}, {"mge_quant": "1 / 0"})
    code = (
        "import mge\ntry:\n    mge.quantization\nexcept mge.PluginUnavailable as e:\n    print(e)"
    )
    assert "ZeroDivisionError: division by zero" in site.python(code)[0]
    off = site.python(code, MGE_PLUGINS_DISABLE="mge-quant")[0]
    assert "mge-quant is off: MGE_PLUGINS_DISABLE=mge-quant" in off
