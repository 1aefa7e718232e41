"""The packages of plugins that are really installed: none of these tests' business."""

from mge.discovery import discover

REAL = sorted(
    {e.package for e in discover().entries} - {"mge-toy"}
)  # that is what fake ones are called
